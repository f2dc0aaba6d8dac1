"""The optimizer that gossips: the local update is the inner optimizer's, mixing comes after it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.gossip import checkpoint
from headway.gossip.connections import Connections
from headway.gossip.core import Gossip
from headway.gossip.events import GossipEvent, Journal
from headway.gossip.flat import FlatView
from headway.gossip.settings import Settings
from headway.gossip.statistics import GossipStatistics, Meter
from headway.gossip.topology import Topology

_PARTING_S = 5.0
"""How long to wait for the others at the end, if somebody is lost."""


class GossipOptimizer(Optimizer):
    """Steps like the optimizer it wraps, and mixes the model with those of the neighbours; made by `wrap`.

    Parameter groups and state are those of the inner optimizer, so that schedulers act on them. A GradScaler that
    finds an overflow skips the local update only: the neighbours need this rank's message all the same.
    """

    _step_supports_amp_scaling = True
    """Let a GradScaler call `step` even where it has found an overflow."""

    def __init__(
        self,
        inner: Optimizer,
        parameters: FlatView,
        buffers: FlatView,
        gossip: Gossip,
        connections: Connections,
        topology: Topology,
        settings: Settings,
        journal: Journal,
        meter: Meter,
    ) -> None:
        super().__init__(inner.param_groups, inner.defaults)
        self.inner = inner
        self.topology = topology
        self._parameters = parameters
        self._buffers = buffers
        self._gossip = gossip
        self._connections = connections
        self._settings = settings
        self._journal = journal
        self._meter = meter
        self._flat = torch.empty(parameters.numel, device=parameters.device)
        self._shown = None if parameters.is_exact else parameters.new()
        """The model as narrow parameters hold it, when it was last written."""
        self._frozen = [p for group in inner.param_groups for p in group["params"] if not p.requires_grad]
        self._lent: Tensor | None = None
        """The own parameters, while the average is in their place."""
        self._share_with_inner()

    def _share_with_inner(self) -> None:
        self.param_groups = self.inner.param_groups
        self.state = self.inner.state

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Let the inner optimizer move the model, then gossip; return what the inner optimizer returns.

        **Cost**: degree messages and one α, the same for any number of ranks; during the next forward and backward
        where the algorithm allows it (all but choco).
        """
        self._check_not_lent("step")
        self._connections.check_open()
        if any(parameter.requires_grad for parameter in self._frozen):
            raise ValueError("a parameter that was frozen when the optimizer was wrapped is not any more: wrap anew")
        loss = self._step_inner(closure)
        if self.topology.num_ranks == 1:
            self._gossip.stay_alone(self._parameters.read(self._flat))
        elif (mixed := self._gossip.advance(self._read)) is not None:
            self._write(mixed)
        return loss

    def _read(self) -> Tensor:
        """Return the model, with what narrow parameters have rounded away."""
        flat = self._parameters.read(self._flat)
        return flat if self._shown is None else flat.sub_(self._shown).add_(self._gossip.algorithm.x)

    def _write(self, x: Tensor) -> None:
        self._parameters.write(x)
        if self._shown is not None:
            self._parameters.read(self._shown)

    def _step_inner(self, closure: Callable[[], float] | None) -> float | None:
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and float(found_inf):
            return None
        scale = getattr(self, "grad_scale", None)
        if scale is not None:
            for gradient in self._gradients():
                gradient.div_(scale)
        loss: float | None = self.inner.step() if closure is None else self.inner.step(closure)
        return loss

    def _gradients(self) -> Iterator[Tensor]:
        for group in self.param_groups:
            yield from (parameter.grad for parameter in group["params"] if parameter.grad is not None)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse, once wrapped: all ranks have agreed on what a message holds."""
        if hasattr(self, "inner"):
            raise ValueError("parameters cannot be added to a wrapped optimizer: add them first, then wrap")
        super().add_param_group(param_group)

    @torch.no_grad()
    def consensus_distance(self) -> float:
        """Return how far models are apart, √(Σ_i |x_i - x̄|² / N). All ranks call it; costs a dense all-reduce."""
        self._check_not_lent("consensus_distance")
        return self._connections.everyone.distance(self._settled_model())

    @torch.no_grad()
    def average_(self) -> None:
        """Replace model and floating buffers by their average over all ranks. All ranks call it.

        Everybody has the same model then, and gossip begins anew from there.
        """
        self._check_not_lent("average_")
        self._connections.check_open()
        self._gossip.finish()
        mean = self._take_average(self._settled_model())
        self._gossip.start(mean)
        self._write(mean)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Have the average in the model for a while, to evaluate or save it. All ranks enter.

        Training goes on after it as if nothing had been.
        """
        self._check_not_lent("averaged")
        model = self._settled_model()
        own, buffers = self._parameters.new(), self._buffers.new()
        self._take_average(model)
        self._lent = own
        try:
            yield
        finally:
            self._lent = None
            self._parameters.write(own)
            self._buffers.write(buffers)

    def _check_not_lent(self, what: str) -> None:
        if self._lent is not None:
            raise ValueError(f"{what} inside averaged(): the model holds the average there, leave it first")

    def _settled_model(self) -> Tensor:
        self._connections.check_open()
        self._gossip.drain()
        return self._read()

    def _take_average(self, x: Tensor) -> Tensor:
        average = self._connections.everyone.average(torch.cat([x, self._buffers.new().to(x.device)]))
        mean, buffers = torch.split(average, [self._parameters.numel, self._buffers.numel])
        self._parameters.write(mean)
        self._buffers.write(buffers)
        return mean

    @property
    def events(self) -> tuple[GossipEvent, ...]:
        """What has happened to this rank besides training, oldest first."""
        return tuple(self._journal.events)

    @property
    def neighbours(self) -> tuple[int, ...]:
        """The ranks it talks to, less those that are lost."""
        return self._gossip.estimates.ranks

    @property
    def description(self) -> str:
        """What it does, in a few words."""
        return f"gossip {self._settings.algorithm}, {self.topology.name}, {self._settings.chosen_compressor}"

    def statistics(self) -> GossipStatistics:
        """Return what gossip has cost this rank so far."""
        return self._meter.read(self._gossip.step, self.topology.num_ranks, self._parameters.numel)

    def state_dict(self) -> dict[str, Any]:
        """Return the inner optimizer's state and that of gossip, of this rank. Between steps, on every rank."""
        self._connections.check_open()
        gossip = checkpoint.save(self._gossip, self.topology, self._settings, self._connections.rank)
        own = self._parameters.new() if self._lent is None else self._lent
        moved = own.cpu() if self._gossip.is_between_exchanges else None
        return {"optimizer": self.inner.state_dict(), "gossip": {**gossip, "moved": moved}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state, to the bit; all ranks call it, each with its own. Writes the model's parameters too."""
        self._check_not_lent("load_state_dict")
        self._connections.check_open()
        state = state_dict.get("gossip") if isinstance(state_dict, Mapping) else None
        reason = checkpoint.misfit(state, self._gossip, self.topology, self._settings, self._connections.rank)
        self._connections.check_that_all_fit(reason, -1 if reason or state is None else int(state["step"]))
        assert state is not None
        self.inner.load_state_dict(state_dict["optimizer"])
        self._share_with_inner()
        self._gossip.load(state)
        self._write(self._gossip.algorithm.x)
        if state["moved"] is not None:
            self._parameters.write(state["moved"].to(self._parameters.device))

    def close(self) -> None:
        """End threads and connections, once training is over. All ranks call it; a second call does nothing.

        It waits for the others, ``timeout_s`` at most, since they may still be reading the last message.
        """
        self._gossip.stop()
        self._connections.close(min(self._settings.timeout_s, _PARTING_S if self._gossip.has_lost else math.inf))
        self._gossip.leave()
