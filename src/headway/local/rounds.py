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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.averaging import Averaging
from headway.errors import HeadwayError, PeerLost
from headway.exchange import Bucket, BucketLayout, Memories
from headway.local.outer import Outer
from headway.local.regrouping import GuestsWaiting, Regrouping
from headway.local.round_state import NEW, RoundState
from headway.local.staged_buffers import StagedBuffers
from headway.replica import FlatView, make_equal
from headway.tuner import Pace

_logger = logging.getLogger("headway")


class _InCommon(NamedTuple):
    """Copies of what all ranks have in common between rounds."""

    model: Tensor
    velocity: Tensor | None
    buffers: dict[str, Tensor]
    unmoved: list[Tensor]

    @property
    def tensors(self) -> list[Tensor]:
        """All of it."""
        velocity = [] if self.velocity is None else [self.velocity]
        return [self.model, *velocity, *self.buffers.values(), *self.unmoved]


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
        self._unmoved = unmoved
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
        rest = self._sum_of_all()
        while rest is None:
            rest = self._sum_of_all()
        if self.averaging.averager.memories is not None:
            self.averaging.averager.memories.forget()
        self._buffers.apply(is_late=False)
        self._take(rest.div_(self.averaging.num_ranks))
        self._write(self.state.common)
        self.state.num_since = 0

    def _sum_of_all(self) -> Tensor | None:
        """Return the sum of what ranks have moved and kept back, and average the buffers; None if ranks were lost."""
        rest = self.state.base - self._parameters.new()
        if self._residual is not None:
            rest += self._residual
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
            self.state.residual_before = None if self._residual is None else self._residual.clone()
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
        self._write(self.state.common + (self._parameters.new() - self.state.base) if is_late else self.state.common)

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
        """Take over an averaging of other ranks: agree on the common model, and carry over what is kept.

        A rank may be a round ahead of one that lost its connections first. What was sent in a round that no rank has
        applied is taken back; where some have, the others take the common model from one of them.
        """
        executor, old = averaging.executor, self.averaging
        has_residual = self._residual is not None or self.state.residual_before is not None
        rows = executor.all_gather(torch.tensor([self.state.num_rounds, has_residual, self.state.num_steps])).tolist()
        all_rounds, have_residuals, all_steps = map(list, zip(*rows, strict=True))
        latest = max(all_rounds)
        source = all_rounds.index(latest)
        latest_state = self._state_in_common()
        if min(all_rounds) < latest:
            make_equal(executor, latest_state.tensors, source)
        place, pace = averaging.loop.place_of(vars(old.plan))
        own = torch.tensor([old.averager.step, place, *pace])
        step, place, *numbers = executor.broadcast(own, source).tolist()
        # Nothing is sent from here on: all of it happens, or nothing.
        residual = self._carry_over(latest_state, latest)
        if residual is None and any(have_residuals):
            residual = torch.zeros_like(self.state.common)
        self.state.num_rounds, self.state.num_steps = latest, max(all_steps)
        averaging.averager.resume(step, (self._layout,), Memories((self._layout,), residual), [0.0])
        averaging.loop.resume(step, place, Pace(*numbers))
        self.state.difference = self.state.residual_before = None
        self.state.pace = Pace(*numbers)
        self.state.num_since = self.state.pace.local_steps - 1  # the next step of all ranks ends with an exchange
        self._own_s, self._left_at = [], None
        self.averaging = averaging

    def _state_in_common(self) -> _InCommon:
        """Return copies of all that ranks have in common between rounds."""
        return _InCommon(
            self.state.common.clone(),
            None if self.state.velocity is None else self.state.velocity.clone(),
            self._buffers.common_copies(),
            [tensor.detach().clone() for tensor in self._unmoved],
        )

    def _carry_over(self, state: _InCommon, latest: int) -> Tensor | None:
        """Take over what ranks have in common after the latest round; return the residual to go on with."""
        if self.state.num_rounds == latest:
            if self.state.difference is None:
                return self._residual
            self.state.base.add_(self.state.moved)
            return self.state.residual_before
        self.state.common, self.state.velocity = state.model, state.velocity
        self._buffers.take_over(state.buffers)
        if self.state.num_rounds != NEW:
            self._write(self.state.common + (self._parameters.new() - self.state.base))
            return self._residual
        for tensor, value in zip(self._unmoved, state.unmoved, strict=True):
            tensor.detach().copy_(value)
        self._buffers.start_again()
        self._write(self.state.common)
        return None

    def _write(self, model: Tensor) -> None:
        """Put a model in place whose steps since the last exchange start from the common one."""
        self._parameters.write(model)
        if self._parameters.is_exact:
            self.state.base.copy_(self.state.common)
        else:  # 16-bit parameters round what they are given: that is no step of this rank
            self.state.base.copy_(self.state.common - (model - self._parameters.new()))

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
        self._write(self.state.common)

    def _kept(self) -> float:
        """Return <d, residual> before the exchange."""
        residual = self._residual
        return 0.0 if residual is None else float(torch.dot(self.state.moved, residual)) * self._residual_decay

    def _decay_residual(self) -> None:
        memories = self.averaging.averager.memories
        if self._residual_decay < 1 and memories is not None:
            memories.rescale(self._residual_decay)

    def _tell_agreement(self, average: Tensor, was_kept: float) -> None:
        """Tell how much of what this rank has moved all ranks agree on, where it was sent."""
        moved, residual = self.state.moved, self._residual
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
