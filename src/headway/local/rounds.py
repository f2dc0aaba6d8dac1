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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from headway.averaging import Averaging
from headway.errors import HeadwayError, PeerLost
from headway.exchange import Bucket, BucketLayout
from headway.local.outer import Outer
from headway.local.regrouping import GuestsWaiting, Regrouping
from headway.local.round_state import NEW, RoundState
from headway.local.settling import Settling
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
        regrouping: Makes a new averaging if ranks are lost; None to raise `PeerLost` then.
        unmoved: Tensors of the model that training does not average, for ranks that were away.
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
        regrouping: Regrouping | None = None,
        unmoved: Sequence[Tensor] = (),
    ) -> None:
        self.averaging = averaging
        self._parameters = parameters
        self._layout = layout
        self._buffers = buffers
        self._outer = outer
        self._residual_decay = residual_decay
        self._forget = forget
        self._regrouping = regrouping
        self._settling = Settling(parameters, layout, buffers, unmoved)
        self.state = RoundState.at_start(parameters.new(), Pace.of(averaging.plan), has_velocity=outer.has_momentum)
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
        self.state.num_steps += 1
        now = time.perf_counter()
        if self._left_at is not None:
            self._own_s.append(now - self._left_at)
        self.state.num_since += 1
        if self.state.difference is not None and self.state.num_since >= self.state.pace.delay:
            self._apply()
        if self.state.difference is None and self.state.num_since >= self.state.pace.local_steps:
            self._begin()
            if self.state.pace.delay == 0:
                self._apply()
        self._left_at = time.perf_counter()

    @contextmanager
    def in_common(self) -> Iterator[None]:
        """Put the common model in place inside the block, with the buffers that all ranks have in common."""
        own = self._parameters.new()
        self._parameters.write(self.state.common)
        try:
            with self._buffers.in_common():
                yield
        finally:
            self._parameters.write(own)

    @torch.no_grad()
    def average(self) -> None:
        """Apply what all ranks have moved and kept back, whole: after it, all have the common model."""
        if self.state.difference is not None:
            self._apply()
        if not bool(self._parameters.new().isfinite().all()):
            self._start_again()
        while (rest := self._sum_of_all()) is None:
            pass
        if self.averaging.averager.memories is not None:
            self.averaging.averager.memories.forget()
        self._buffers.apply(is_late=False)
        self._take(rest.div_(self.averaging.num_ranks))
        self._put(self.state.common)
        self.state.num_since = 0

    def _sum_of_all(self) -> Tensor | None:
        """Return the sum of what ranks have moved and kept back, and average the buffers; None if ranks were lost."""
        rest = self.state.base - self._parameters.new()
        if self.averaging.residual is not None:
            rest += self.averaging.residual
        try:
            self.averaging.executor.all_reduce(rest)
            self._buffers.stage()
            self.averaging.average_buffers()
        except PeerLost as error:
            self._go_on_after(error)
            return None
        return rest

    def as_data(self) -> dict[str, Any]:
        """Return all that the next steps depend on, once the exchange under way is over; on every rank."""
        if self.state.difference is not None:
            self._finish_exchange()
        return {
            "averaging": self.averaging.state_dict(),
            **self.state.as_data(),
            "model": self._parameters.new(),
            "buffers": self._buffers.state(),
        }

    def misfit(self, data: Mapping[str, Any]) -> str | None:
        """Return why what `as_data` returned does not fit this rank; None if it does."""
        return self.state.misfit(data) or self._buffers.misfit(data["buffers"])

    @torch.no_grad()
    def load(self, data: Mapping[str, Any]) -> None:
        """Restore what `as_data` returned, but for the averaging."""
        self.state.load(data)
        device = self.state.common.device
        self._buffers.load(data["buffers"])
        if self.averaging.averager.memories is not None:
            self.averaging.averager.memories.move_to(device)
        self._parameters.write(data["model"].to(device))
        self._own_s, self._left_at = [], None

    def _begin(self) -> None:
        """Hand what this rank has moved to the engine, and go on from here."""
        self.state.pace = Pace.of(self.averaging.plan)
        model = self._parameters.new()
        difference = torch.sub(self.state.base, model)
        self.state.base = model
        self.state.moved.copy_(difference)
        self.state.difference = difference
        self.state.num_since = 0
        self._buffers.stage()
        if self._regrouping is not None:
            self.state.residual_before = None if self.averaging.residual is None else self.averaging.residual.clone()
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
            if self._regrouping is not None:
                self._regrouping.check_for_guests(self.averaging)
            self.averaging.loop.observe_own_time(own_s)
            self._decay_residual()
            self.averaging.averager.take(bucket)

        self.averaging.engine.submit(run, give_up=self.averaging.cut_off)

    def _apply(self) -> None:
        """Wait for the average, and take it over."""
        if not self._finish_exchange():
            return
        difference, self.state.difference = self.state.difference, None
        assert difference is not None
        if not bool(difference.isfinite().all()):
            self._skip_round()
            return
        self._take(difference)
        is_late = self.state.num_since > 0
        self._buffers.apply(is_late=is_late)
        since = self._parameters.new() - self.state.base if is_late else None
        self._put(self.state.common if since is None else self.state.common + since)

    def _take(self, average: Tensor) -> None:
        """Move the common model."""
        self._outer.apply(self.state.common, average, self.state.velocity)
        self.state.num_rounds += 1

    def _finish_exchange(self) -> bool:
        """Wait for the exchange under way; return False if it has failed, and ranks have regrouped."""
        try:
            self.averaging.engine.drain()
        except (PeerLost, GuestsWaiting) as error:
            self._go_on_after(error)
            return False
        return True

    def _go_on_after(self, error: HeadwayError) -> None:
        """Go on with the ranks that are left, or raise the error if that is not wanted."""
        if self._regrouping is None:
            raise error
        self._regrouping.regroup(self.averaging, error, self._settle)

    def join(self) -> None:
        """Take over what the other ranks have in common: this one was away, and its averaging is new."""
        self.state.num_rounds = NEW
        self._settle(self.averaging)

    def _settle(self, averaging: Averaging) -> None:
        """Take over an averaging of other ranks."""
        self._settling.settle(self.state, self.averaging, averaging)
        self._own_s, self._left_at = [], None
        self.averaging = averaging

    def _put(self, model: Tensor) -> None:
        self.state.put(model, self._parameters)

    def _skip_round(self) -> None:
        """Leave the common model as it is, because some rank's is not finite: that rank starts again from it."""
        if bool(self._parameters.new().isfinite().all()):
            self.state.base.add_(self.state.moved)
            return
        self._start_again()

    def _start_again(self) -> None:
        """Go on from the common model, at the same step of the round as all ranks."""
        _logger.warning("this rank's model has Inf or NaN: it goes on from the common model")
        self._forget()
        self._buffers.start_again()
        self._put(self.state.common)

    def _kept(self) -> float:
        """Return <d, residual> before the exchange."""
        residual = self.averaging.residual
        return 0.0 if residual is None else float(torch.dot(self.state.moved, residual)) * self._residual_decay

    def _decay_residual(self) -> None:
        memories = self.averaging.averager.memories
        if self._residual_decay < 1 and memories is not None:
            memories.rescale(self._residual_decay)

    def _tell_agreement(self, average: Tensor, was_kept: float) -> None:
        """Tell how much of what this rank has moved all ranks agree on, where it was sent."""
        moved, residual = self.state.moved, self.averaging.residual
        is_kept = 0.0 if residual is None else float(torch.dot(moved, residual))
        sent = was_kept + float(torch.dot(moved, moved)) - is_kept
        agreed = float(torch.dot(moved, average))
        if 0 < sent < math.inf and math.isfinite(agreed):
            self.agreement = agreed / sent
            self.averaging.loop.observe_agreement(sent, agreed)


def _usual(seconds: list[float]) -> float:
    """Return the lower quartile: an exchange under way slows steps down, and so does an evaluation; NaN for none."""
    return sorted(seconds)[len(seconds) // 4] if seconds else math.nan
