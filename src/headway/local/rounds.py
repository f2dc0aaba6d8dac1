"""Rounds: after some local steps the difference from the last common model is averaged over all ranks.

    d_i = base_i - w_i                   what the steps since the last exchange have moved
    D   = average of C(d_i + residual_i) by any exchange, with error feedback
    w   = outer(w, D)                    the common model, the same bits on all ranks
    w_i = w + what w_i has moved since the exchange began

While an exchange is under way, a rank goes on from its own model; the average is applied some steps late, but the own
part is there at once.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from headway.averaging import Averaging
from headway.exchange import Bucket, BucketLayout
from headway.local.outer import Outer
from headway.local.staged_buffers import StagedBuffers
from headway.replica import FlatView
from headway.tuner import Pace

_logger = logging.getLogger("headway")


class Rounds:
    """The common model of a run, and the exchange under way.

    **Memory**: 4 bytes a parameter for each of: the common model, the model when the last exchange began, what is
    exchanged, what this rank has moved, the residual, and an outer velocity if there is one.

    Args:
        averaging: Averages the differences.
        parameters: The model's parameters.
        layout: Their names and sizes, in the same order.
        buffers: The model's buffers.
        outer: The outer optimizer.
        residual_decay: What of the residual is kept from round to round.
        forget: Drops what made this rank's model Inf or NaN, such as a velocity.
    """

    def __init__(
        self,
        averaging: Averaging,
        parameters: FlatView,
        layout: BucketLayout,
        buffers: StagedBuffers,
        outer: Outer,
        residual_decay: float,
        forget: Callable[[], None],
    ) -> None:
        self.averaging = averaging
        self._parameters = parameters
        self._layout = layout
        self._buffers = buffers
        self._outer = outer
        self._residual_decay = residual_decay
        self._forget = forget
        self.common = parameters.new()
        """The model that all ranks have in common, after the last round that was applied."""
        self._velocity = torch.zeros_like(self.common) if outer.has_momentum else None
        self._base = self.common.clone()
        """Where the steps began that the next exchange will send; the model as it was then."""
        self._moved = torch.empty_like(self.common)
        """What this rank has moved before the exchange under way."""
        self._difference: Tensor | None = None
        """The exchange under way: what was moved, and in the end the average over ranks."""
        self._pace = Pace.of(averaging.plan)
        self._num_since = 0
        """Steps since the last exchange began."""
        self._own_s: list[float] = []
        self._left_at: float | None = None
        self.agreement = math.nan
        """How much the latest differences of this rank agree with those of all."""

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the parameters by name."""
        return dict(zip(self._layout.names, self._layout.numels, strict=True))

    @torch.no_grad()
    def advance(self) -> None:
        """Take in that a local step is done: apply the average that is due, and begin an exchange if one is due."""
        now = time.perf_counter()
        if self._left_at is not None:
            self._own_s.append(now - self._left_at)
        self._num_since += 1
        if self._difference is not None and self._num_since >= self._pace.delay:
            self._apply()
        if self._difference is None and self._num_since >= self._pace.local_steps:
            self._begin()
            if self._pace.delay == 0:
                self._apply()
        self._left_at = time.perf_counter()

    @contextmanager
    def in_common(self) -> Iterator[None]:
        """Put the common model in place inside the block, with the buffers that all ranks have in common."""
        own = self._parameters.new()
        self._parameters.write(self.common)
        try:
            with self._buffers.in_common():
                yield
        finally:
            self._parameters.write(own)

    @torch.no_grad()
    def average(self) -> None:
        """Apply what all ranks have moved and kept back, whole: after it, all have the common model."""
        if self._difference is not None:
            self._apply()
        executor, memories = self.averaging.executor, self.averaging.averager.memories
        rest = self._base - self._parameters.new()
        if not bool(rest.isfinite().all()):
            self._start_again()
            rest.zero_()
        if memories is not None and memories.residual is not None:
            rest += memories.residual
            memories.forget()
        executor.all_reduce(rest).div_(executor.num_ranks)
        self._buffers.stage()
        self.averaging.average_buffers()
        self._buffers.apply(is_late=False)
        self._outer.apply(self.common, rest, self._velocity)
        self._write(self.common)
        self._num_since = 0

    def state(self) -> dict[str, Any]:
        """Return all that the next steps depend on, once the exchange under way is over; on every rank."""
        averaging = self.averaging.state_dict()
        return {
            "averaging": averaging,
            "common": self.common,
            "velocity": self._velocity,
            "base": self._base,
            "moved": self._moved if self._difference is not None else None,
            "difference": self._difference,
            "model": self._parameters.new(),
            "pace": list(self._pace),
            "num_since": self._num_since,
            "buffers": self._buffers.state(),
        }

    def misfit(self, state: Mapping[str, Any]) -> str | None:
        """Return why a state does not fit this rank; None if it does."""
        numel = self.common.numel()
        for name in ("common", "base", "model", "velocity", "moved", "difference"):
            flat = state[name]
            if flat is None and name in ("moved", "difference"):
                continue
            if (flat is None) != (name == "velocity" and self._velocity is None):
                return f"the state was made with another outer optimizer, or is damaged: {name!r}"
            if flat is not None and flat.numel() != numel:
                return f"the state is of another model: {name!r} has {flat.numel():,} parameters, not {numel:,}"
        return self._buffers.misfit(state["buffers"])

    @torch.no_grad()
    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned, but for the averaging."""
        self.common.copy_(state["common"])
        self._base.copy_(state["base"])
        if self._velocity is not None:
            self._velocity.copy_(state["velocity"])
        self._difference = None if state["difference"] is None else state["difference"].to(self.common.device)
        if self._difference is not None:
            self._moved.copy_(state["moved"])
        self._pace = Pace(*state["pace"])
        self._num_since = int(state["num_since"])
        self._buffers.load(state["buffers"])
        if self.averaging.averager.memories is not None:
            self.averaging.averager.memories.move_to(self.common.device)
        self._parameters.write(state["model"].to(self.common.device))
        self._own_s, self._left_at = [], None

    def _begin(self) -> None:
        """Hand what this rank has moved to the engine, and go on from here."""
        self._pace = Pace.of(self.averaging.plan)
        model = self._parameters.new()
        difference = torch.sub(self._base, model)
        self._base = model
        self._moved.copy_(difference)
        self._difference = difference
        self._num_since = 0
        self._buffers.stage()
        was_kept = self._kept()
        own_s = _usual(self._own_s)
        self._own_s = []
        bucket = Bucket(
            index=0,
            gradient=difference,
            layout=self._layout,
            is_last=True,
            on_done=lambda: self._tell_agreement(difference, was_kept),
        )

        def run() -> None:
            self.averaging.loop.observe_own_time(own_s)
            self._decay_residual()
            self.averaging.averager.take(bucket)

        self.averaging.engine.submit(run, give_up=self.averaging.cut_off)

    def _apply(self) -> None:
        """Wait for the average, and take it over."""
        self.averaging.engine.drain()
        difference, self._difference = self._difference, None
        assert difference is not None
        if not bool(difference.isfinite().all()):
            self._skip_round()
            return
        self._outer.apply(self.common, difference, self._velocity)
        is_late = self._num_since > 0
        self._buffers.apply(is_late=is_late)
        self._write(self.common + (self._parameters.new() - self._base) if is_late else self.common)

    def _write(self, model: Tensor) -> None:
        """Put a model in place whose steps since the last exchange start from the common one."""
        self._parameters.write(model)
        if self._parameters.is_exact:
            self._base.copy_(self.common)
        else:  # 16-bit parameters round what they are given: that is no step of this rank
            self._base.copy_(self.common - (model - self._parameters.new()))

    def _skip_round(self) -> None:
        """Leave the common model as it is, because some rank's is not finite: that rank starts again from it."""
        if bool(self._parameters.new().isfinite().all()):
            self._base.add_(self._moved)
            return
        self._start_again()

    def _start_again(self) -> None:
        """Go on from the common model, at the same step of the round as all ranks."""
        _logger.warning("this rank's model has Inf or NaN: it goes on from the common model")
        self._forget()
        self._buffers.start_again()
        self._write(self.common)

    def _kept(self) -> float:
        """Return <d, residual> before the exchange."""
        residual = self._residual
        return 0.0 if residual is None else float(torch.dot(self._moved, residual)) * self._residual_decay

    def _decay_residual(self) -> None:
        memories = self.averaging.averager.memories
        if self._residual_decay < 1 and memories is not None:
            memories.rescale(self._residual_decay)

    def _tell_agreement(self, average: Tensor, was_kept: float) -> None:
        """Tell how much of what this rank has moved all ranks agree on, where it was sent."""
        moved, residual = self._moved, self._residual
        is_kept = 0.0 if residual is None else float(torch.dot(moved, residual))
        sent = was_kept + float(torch.dot(moved, moved)) - is_kept
        agreed = float(torch.dot(moved, average))
        if 0 < sent < math.inf and math.isfinite(agreed):
            self.agreement = agreed / sent
            self.averaging.loop.observe_agreement(sent, agreed)

    @property
    def _residual(self) -> Tensor | None:
        memories = self.averaging.averager.memories
        return None if memories is None else memories.residual


def _usual(seconds: list[float]) -> float:
    """Return the lower quartile: an exchange under way slows steps down, and so does an evaluation; NaN for none."""
    return sorted(seconds)[len(seconds) // 4] if seconds else math.nan
