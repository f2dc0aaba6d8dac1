"""The optimizer that gossips: the inner optimizer makes the local update, then the model is mixed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.collectives.ends import CLOSING_S
from headway.gossip import checkpoint
from headway.gossip.connections import Connections
from headway.gossip.gossip import Gossip
from headway.gossip.live_ranks import LiveRanks
from headway.gossip.monitoring import GossipEvent, GossipStatistics
from headway.gossip.settings import GossipSettings
from headway.gossip.topology import Topology
from headway.replica import FlatView, WrappedOptimizer


class GossipOptimizer(WrappedOptimizer):
    """Steps like the optimizer it wraps, and mixes the model with those of the neighbours; made by `wrap`."""

    def __init__(
        self,
        inner: Optimizer,
        parameters: FlatView,
        buffers: FlatView,
        gossip: Gossip,
        live_ranks: LiveRanks,
        connections: Connections,
        topology: Topology,
        settings: GossipSettings,
    ) -> None:
        super().__init__(inner)
        self.topology = topology
        self._parameters = parameters
        self._buffers = buffers
        self._gossip = gossip
        self._live_ranks = live_ranks
        self._connections = connections
        self._settings = settings
        self._flat = torch.empty(parameters.numel, device=parameters.device)
        self._rounded = None if parameters.is_exact else parameters.new()
        """The model as 16-bit parameters held it when it was last written."""
        self._own: Tensor | None = None
        """This rank's parameters while the average is in their place."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Let the inner optimizer move the model, then gossip; return what the inner optimizer returns.

        **Cost**: degree messages and one α, the same for any number of ranks; during the next forward and backward
        where the algorithm allows it (all but choco).
        """
        self._check_usable("step")
        loss = self.step_inner(closure)
        if self.topology.num_ranks == 1:
            self._gossip.stay_alone(self._parameters.read(self._flat))
        elif (mixed := self._gossip.advance(self._read)) is not None:
            self._write(mixed)
        return loss

    def _read(self) -> Tensor:
        """Return the model, with what 16-bit parameters have rounded away."""
        flat = self._parameters.read(self._flat)
        return flat if self._rounded is None else flat.sub_(self._rounded).add_(self._gossip.algorithm.x)

    def _write(self, x: Tensor) -> None:
        self._parameters.write(x)
        if self._rounded is not None:
            self._parameters.read(self._rounded)

    @torch.no_grad()
    def consensus_distance(self) -> float:
        """Return how far models are apart, √(Σ_i |x_i - x̄|² / N). All ranks call it; costs a dense all-reduce."""
        self._check_usable("consensus_distance")
        self._gossip.drain()
        return self._live_ranks.distance(self._read())

    @torch.no_grad()
    def average_(self) -> None:
        """Replace model and floating-point buffers by their average over all ranks. All ranks call it.

        All ranks have the same model then, and gossip starts again from there.
        """
        self._check_usable("average_")
        self._gossip.finish()
        mean = self._write_average(self._read())
        self._gossip.start(mean)
        self._write(mean)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Put the average into the model inside the block, to evaluate or save it. All ranks enter.

        Afterwards training continues as if the block had not been there.
        """
        self._check_usable("averaged")
        self._gossip.drain()
        model = self._read()
        own, buffers = self._parameters.new(), self._buffers.new()
        self._write_average(model)
        self._own = own
        try:
            yield
        finally:
            self._own = None
            self._parameters.write(own)
            self._buffers.write(buffers)

    def _check_usable(self, what: str) -> None:
        if self._own is not None:
            raise ValueError(f"{what} inside averaged(): the model holds the average there, leave it first")
        self._connections.check_open()

    def _write_average(self, x: Tensor) -> Tensor:
        average = self._live_ranks.average(torch.cat([x, self._buffers.new().to(x.device)]))
        mean, buffers = torch.split(average, [self._parameters.numel, self._buffers.numel])
        self._parameters.write(mean)
        self._buffers.write(buffers)
        return mean

    @property
    def events(self) -> tuple[GossipEvent, ...]:
        """What has happened to this rank besides training, oldest first."""
        return tuple(self._gossip.events.all)

    @property
    def neighbours(self) -> tuple[int, ...]:
        """The neighbours of this rank, without those that are lost."""
        return self._gossip.estimates.ranks

    @property
    def description(self) -> str:
        """Algorithm, topology and compressor."""
        return f"gossip {self._settings.algorithm}, {self.topology.name}, {self._settings.chosen_compressor}"

    def statistics(self) -> GossipStatistics:
        """Return what gossip has cost this rank so far."""
        return self._gossip.meter.read(self._gossip.step, self.topology.num_ranks, self._parameters.numel)

    def state_dict(self) -> dict[str, Any]:
        """Return the inner optimizer's state and that of gossip, of this rank. Between steps, on every rank."""
        self._connections.check_open()
        gossip = checkpoint.save(self._gossip, self.topology, self._settings, self._connections.rank)
        own = self._parameters.new() if self._own is None else self._own
        moved = own.cpu() if self._gossip.is_between_rounds else None
        return {"optimizer": self.inner.state_dict(), "gossip": {**gossip, "moved": moved}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state with the same bits; all ranks call it, each with its own. Also writes the parameters."""
        self._check_usable("load_state_dict")
        state = state_dict.get("gossip", {}) if isinstance(state_dict, Mapping) else {}
        misfit = checkpoint.misfit(state, self._gossip, self.topology, self._settings, self._connections.rank)
        self._live_ranks.check_state(misfit, int(state["step"]) if misfit is None else -1)
        self.inner.load_state_dict(state_dict["optimizer"])
        self.share_with_inner()
        self._gossip.load(state)
        self._write(self._gossip.algorithm.x)
        if state["moved"] is not None:
            self._parameters.write(state["moved"].to(self._parameters.device))

    def close(self) -> None:
        """End threads and connections, once training is over. All ranks call it; a second call does nothing.

        It waits for the others, since they may still be reading the last message: ``timeout_s`` at most, and a few
        seconds if a neighbour is lost.
        """
        self._gossip.stop()
        lost = self._gossip.neighbourhood.lost
        self._connections.close(min(self._settings.timeout_s, CLOSING_S if lost else math.inf))
        self._gossip.neighbourhood.close()
