"""A rank's gossip: algorithm, estimates, compressor and neighbours, on flat tensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headway.compress import Compressor, StochasticQuantizer
from headway.errors import MessageError, PeerLost
from headway.exchange.engine import Engine
from headway.gossip.algorithms import Algorithm
from headway.gossip.edge import EdgeLost, MessageLayout
from headway.gossip.estimates import Change, Estimates
from headway.gossip.mixed_buffers import MixedBuffers
from headway.gossip.monitoring import GossipEvents, Meter
from headway.gossip.neighbourhood import Neighbourhood
from headway.gossip.settings import GossipSettings
from headway.kernels import noise_key


class Gossip:
    """Takes the model after each local update, and returns what it is after mixing.

    Messages are received and applied on a thread: if the algorithm allows it, during the next forward and backward.

    Args:
        rank: This rank.
        settings: Steps between rounds, and the seed of the compressor's noise.
        algorithm: Decides what is sent, and how the model moves.
        estimates: Estimates of the neighbours' models.
        compressor: Compressor of the messages.
        layout: Sizes of the messages.
        buffers: Buffers of the model.
        neighbourhood: Sends and receives the messages.
        events: Gets losses and saturation.
    """

    def __init__(
        self,
        rank: int,
        settings: GossipSettings,
        algorithm: Algorithm,
        estimates: Estimates,
        compressor: Compressor,
        layout: MessageLayout,
        buffers: MixedBuffers,
        neighbourhood: Neighbourhood,
        events: GossipEvents,
    ) -> None:
        self.algorithm = algorithm
        self.estimates = estimates
        self.neighbourhood = neighbourhood
        self.events = events
        self.meter = Meter()
        self.step = 0
        self._rank = rank
        self._local_steps = settings.local_steps
        self._seed = settings.seed
        self._compressor = compressor
        self._layout = layout
        self._buffers = buffers
        self._numel, self._device = algorithm.x.numel(), algorithm.x.device
        self._sent = torch.empty(self._numel, device=self._device)
        self._received = torch.empty(self._numel, device=self._device)
        self._messages: dict[tuple[int, int], Tensor] = {}
        self._change = Change(keep=1.0, gain=1.0)
        self._num_farewells = 0
        self._engine = Engine("headway-gossip")

    @property
    def is_between_rounds(self) -> bool:
        """Whether the model has moved since it was last mixed."""
        return self.step % self._local_steps > 0

    @property
    def _number(self) -> int:
        """Number of the last round, from 1."""
        return self.step // self._local_steps

    def start(self, x: Tensor) -> None:
        """Start from a model that is the same on all ranks."""
        self.algorithm.start(x)
        self.estimates.start(x)

    def advance(self, read_model: Callable[[], Tensor]) -> Tensor | None:
        """Count a step, and hold a round if one is due; return the model after it, or None if it is unchanged.

        Args:
            read_model: Returns the model after the local update, in memory that may be overwritten.
        """
        self._count_step()
        if self.is_between_rounds:
            return None
        y = read_model()
        self.finish()
        with self.meter.timing("compress_s"):
            message = self._make_message(y)
        self._change = self.algorithm.change
        self.meter.wire_bytes += message.numel() * len(self.neighbourhood.ranks)
        self._engine.submit(partial(self._exchange, self._number, message), give_up=lambda: None)
        if not self.algorithm.overlaps:
            self.finish()
            self.algorithm.mix(self.estimates)
        return self.algorithm.x

    def stay_alone(self, x: Tensor) -> None:
        """Count a step of a single rank, which has no neighbours."""
        self._count_step()
        self.algorithm.start(x)

    def _count_step(self) -> None:
        self.step += 1
        self.events.step = self.step
        self.meter.num_steps += 1

    def finish(self) -> None:
        """Wait until the messages of the last round are applied, and mix buffers; raise what went wrong."""
        self.drain()
        self._buffers.apply()

    def drain(self) -> None:
        """Wait until the messages of the last round are applied, and leave buffers alone; raise what went wrong."""
        self.neighbourhood.needed_since = time.monotonic()
        with self.meter.timing("wait_s"):
            self._engine.drain()
        self.neighbourhood.needed_since = None

    def state(self) -> dict[str, Any]:
        """Return everything that a resumed run needs to continue with the same bits."""
        self.drain()
        return {
            "step": self.step,
            "algorithm": self.algorithm.state(),
            "estimates": self.estimates.state(),
            "buffers": self._buffers.state(),
            "quantizer_step": getattr(self._compressor, "step", None),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned, on all ranks at once."""
        self.drain()
        self.step = int(state["step"])
        self.algorithm.load(state["algorithm"])
        self.estimates.load(state["estimates"])
        self._buffers.load(state["buffers"])
        if isinstance(self._compressor, StochasticQuantizer):  # this model may have got another automatic step
            self._compressor = replace(self._compressor, step=state["quantizer_step"])
        self.neighbourhood.restart()

    def stop(self) -> None:
        """End the engine, once all messages are applied."""
        self.neighbourhood.needed_since = time.monotonic()
        self._engine.close()

    def _make_message(self, y: Tensor) -> Tensor:
        number = self._number
        message = self._memory_for(number)
        payload = self._layout.payload(message)
        key = noise_key(self._seed, number, self._rank)
        proposed = self.algorithm.propose(y, self.estimates)
        target = payload if self._device.type == "cpu" else torch.empty_like(payload, device=self._device)
        num_saturated = self._compressor.encode(proposed, key, out=target)
        self._compressor.decode(target, key, out=self._sent)
        if target is not payload:
            payload.copy_(target)
        self.algorithm.settle(self._sent)
        self._buffers.write(self._layout.buffers(message))
        if num_saturated:
            self.events.note_saturation(num_saturated, self._numel)
        self.meter.num_saturated += num_saturated
        return message

    def _memory_for(self, number: int) -> Tensor:
        """Return memory for a message; all neighbours have received the one of two rounds ago."""
        key = (number % 2, self._layout.num_bytes(number))
        if key not in self._messages:
            self._messages[key] = torch.empty(key[1], dtype=torch.uint8)
        return self._messages[key]

    def _exchange(self, number: int, message: Tensor) -> None:
        """Send, and apply what arrives; on the engine's thread."""
        with self.meter.timing("exchange_s"):
            self.neighbourhood.send(number, message)
            self.estimates.begin(self._change)
            lost = self.neighbourhood.receive(number, partial(self._apply, number))
            if lost:
                self._go_on_without(lost)
                self._messages = {}  # a silent neighbour may still be reading the old ones
            self.estimates.end()

    def _apply(self, number: int, rank: int, message: Tensor) -> None:
        payload = self._layout.payload(message).to(self._device)
        try:
            self._compressor.decode(payload, noise_key(self._seed, number, rank), out=self._received)
        except MessageError as error:
            raise error.from_peer(rank) from error
        self.estimates.add(rank, self._received)
        self._buffers.add(rank, self._layout.buffers(message))

    def _go_on_without(self, lost: Mapping[int, EdgeLost]) -> None:
        """Drop neighbours, or raise `PeerLost` where that is not possible."""
        step = self._number * self._local_steps
        if not self.estimates.can_drop(self._change):
            for rank, reason in lost.items():
                self.events.note_loss(step, rank, str(reason), ())
            raise PeerLost(lost, "gossip; memory='resilient' goes on without a lost neighbour")
        for rank, reason in lost.items():
            self.estimates.drop(rank)
            self._num_farewells += reason.by_farewell
            self.events.note_loss(step, rank, str(reason), self.estimates.ranks)
        if not self.estimates.ranks and self._num_farewells:
            raise PeerLost([], "gossip")
