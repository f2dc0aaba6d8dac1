"""A rank's gossip: algorithm, estimates, compressor and neighbours, on flat tensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headway.compress import PlainCompressor, StochasticQuantizer
from headway.errors import MessageError, PeerLost
from headway.exchange.engine import Engine
from headway.gossip.base import Algorithm
from headway.gossip.buffers import MixedBuffers
from headway.gossip.edge import HEADER_BYTES, EdgeLost
from headway.gossip.estimates import Change, Estimates
from headway.gossip.events import Journal
from headway.gossip.neighbourhood import Neighbourhood
from headway.gossip.statistics import Meter
from headway.kernels import noise_key


class Gossip:
    """Takes the model after each local update, and returns what it is after mixing.

    A message is its header, what the algorithm sends, compressed, and at some steps the buffers. Neighbours' messages
    are taken in on a thread: if the algorithm allows it, during the next forward and backward.

    Args:
        rank: This rank.
        algorithm: What is sent, and what becomes of it.
        estimates: Of the neighbours' models.
        compressor: How it is sent.
        buffers: Of the model.
        local_steps: Steps to an exchange.
        seed: Of random numbers, alike on all ranks.
        journal: Where events go.
        meter: What counts bytes and seconds.
    """

    def __init__(
        self,
        rank: int,
        algorithm: Algorithm,
        estimates: Estimates,
        compressor: PlainCompressor,
        buffers: MixedBuffers,
        local_steps: int,
        seed: int,
        journal: Journal,
        meter: Meter,
    ) -> None:
        self.algorithm = algorithm
        self.estimates = estimates
        self.step = 0
        self._local_steps = local_steps
        self._rank = rank
        self._compressor = compressor
        self._buffers = buffers
        self._seed = seed
        self._journal = journal
        self._meter = meter
        self._numel, self._device = algorithm.x.numel(), algorithm.x.device
        self._payload_bytes = compressor.num_bytes(self._numel)
        self._sent = torch.empty(self._numel, device=self._device)
        self._received = torch.empty(self._numel, device=self._device)
        self._messages: dict[tuple[int, int], Tensor] = {}
        self._engine = Engine("headway-gossip")
        self._change = Change(keep=1.0, gain=1.0)
        self._neighbours: Neighbourhood | None = None
        self._num_farewells = 0
        self._is_open = False

    def join(self, neighbours: Neighbourhood) -> None:
        """Talk to these."""
        self._neighbours = neighbours
        self._num_neighbours = len(neighbours.ranks)

    @property
    def is_between_exchanges(self) -> bool:
        """Whether the model has moved since it was last mixed."""
        return self.step % self._local_steps > 0

    @property
    def _number(self) -> int:
        """Of the last exchange, from 1."""
        return self.step // self._local_steps

    def num_bytes(self, number: int) -> int:
        """Return how long a message is, the first of which has number 1."""
        return HEADER_BYTES + self._payload_bytes + self._buffers.num_bytes(number)

    def start(self, x: Tensor) -> None:
        """Begin from a model that is the same on all ranks."""
        self.algorithm.start(x)
        self.estimates.start(x)

    def advance(self, read_model: Callable[[], Tensor]) -> Tensor | None:
        """Count a step, and if it is time exchange; return what the model is then, or None if it stays as it is.

        Args:
            read_model: Returns the model after the local update, in memory that may be overwritten.
        """
        assert self._neighbours is not None
        self._count_step()
        if self.is_between_exchanges:
            return None
        y = read_model()
        self.finish()
        if not self._is_open:
            self._neighbours.open(self._number)
            self._is_open = True
        with self._meter.compressing():
            message = self._make_message(y)
        self._change = self.algorithm.change
        self._meter.wire_bytes += message.numel() * len(self._neighbours.ranks)
        self._engine.submit(partial(self._exchange, self._number, message), give_up=lambda: None)
        if not self.algorithm.overlaps:
            self.finish()
            self.algorithm.mix(self.estimates)
        return self.algorithm.x

    def stay_alone(self, x: Tensor) -> None:
        """Count a step of a rank that has nobody to talk to."""
        self._count_step()
        self.algorithm.start(x)

    def _count_step(self) -> None:
        self.step += 1
        self._journal.step = self.step
        self._meter.num_steps += 1

    def finish(self) -> None:
        """Wait until the messages of the last exchange have been taken in, and mix buffers; raise what went wrong."""
        self.drain()
        self._buffers.apply()

    def drain(self) -> None:
        """Wait until the messages of the last exchange have been taken in, and leave buffers as they are."""
        assert self._neighbours is not None
        self._neighbours.needed_since = time.monotonic()
        with self._meter.waiting():
            self._engine.drain()
        self._neighbours.needed_since = None

    def state(self) -> dict[str, Any]:
        """Return all that decides what comes next."""
        self.drain()
        return {
            "step": self.step,
            "algorithm": self.algorithm.state(),
            "estimates": self.estimates.state(),
            "buffers": self._buffers.state(),
            "quantizer_step": getattr(self._compressor, "step", None),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take it over, on all ranks at once."""
        self.drain()
        self.step = int(state["step"])
        self.algorithm.load(state["algorithm"])
        self.estimates.load(state["estimates"])
        self._buffers.load(state["buffers"])
        if isinstance(self._compressor, StochasticQuantizer):  # an automatic step was found for another model
            self._compressor = replace(self._compressor, step=state["quantizer_step"])
        self._is_open = False

    def stop(self) -> None:
        """End the engine, once all messages have been taken in."""
        assert self._neighbours is not None
        self._neighbours.needed_since = time.monotonic()
        self._engine.close()

    def leave(self) -> None:
        """Tell neighbours nothing more."""
        assert self._neighbours is not None
        self._neighbours.close()

    @property
    def has_lost(self) -> bool:
        """Whether a neighbour is lost."""
        return self._neighbours is not None and len(self._neighbours.ranks) < self._num_neighbours

    def _make_message(self, y: Tensor) -> Tensor:
        number = self._number
        message = self._buffer_for(number)
        payload = message[HEADER_BYTES : HEADER_BYTES + self._payload_bytes]
        key = noise_key(self._seed, number, self._rank)
        wanted = self.algorithm.propose(y, self.estimates)
        target = payload if self._device.type == "cpu" else torch.empty_like(payload, device=self._device)
        num_unfit = self._compressor.encode(wanted, key, out=target)
        self._compressor.decode(target, key, out=self._sent)
        if target is not payload:
            payload.copy_(target)
        self.algorithm.settle(self._sent)
        self._buffers.write(number, message[HEADER_BYTES + self._payload_bytes :])
        if num_unfit:
            self._journal.note_saturation(num_unfit, self._numel)
        self._meter.num_saturated += num_unfit
        return message

    def _buffer_for(self, number: int) -> Tensor:
        """Return memory for a message; that of two steps ago has been answered by all."""
        key = (number % 2, self.num_bytes(number))
        if key not in self._messages:
            self._messages[key] = torch.empty(key[1], dtype=torch.uint8)
        return self._messages[key]

    def _exchange(self, number: int, message: Tensor) -> None:
        """Send, and take in what comes; on the engine's thread."""
        assert self._neighbours is not None
        start = time.perf_counter()
        self._neighbours.send(number, message)
        self.estimates.begin(self._change)
        if not self._neighbours.receive(number, lambda rank, theirs: self._take(number, rank, theirs)):
            self._messages = {}  # who is silent may still be reading
        self.estimates.end()
        self._meter.exchange_s += time.perf_counter() - start

    def _take(self, number: int, rank: int, message: Tensor) -> None:
        payload = message[: self._payload_bytes].to(self._device)
        try:
            self._compressor.decode(payload, noise_key(self._seed, number, rank), out=self._received)
        except MessageError as error:
            raise error.from_peer(rank) from error
        self.estimates.add(rank, self._received)
        self._buffers.add(rank, message[self._payload_bytes :])

    def go_on_without(self, lost: Mapping[int, EdgeLost]) -> None:
        """Leave neighbours out, or raise `PeerLost` where that cannot be."""
        if not self.estimates.can_drop(self._change):
            for rank, reason in lost.items():
                self._journal.note_loss(self._number * self._local_steps, rank, str(reason), ())
            raise PeerLost(lost, "gossip; memory='resilient' goes on without a lost neighbour")
        for rank, reason in lost.items():
            self.estimates.drop(rank)
            self._num_farewells += reason.by_farewell
            self._journal.note_loss(self._number * self._local_steps, rank, str(reason), self.estimates.ranks)
        if not self.estimates.ranks and self._num_farewells:
            raise PeerLost([], "gossip")
