"""The optimizer that takes local steps, and exchanges differences in between."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.averaging import Averaging, Handle, Statistics
from headway.collectives.ends import closing_deadline
from headway.exchange import BucketLayout
from headway.local import checkpoint
from headway.local.regrouping import Regrouping
from headway.local.rounds import Rounds
from headway.local.settings import LocalSettings
from headway.local.staged_buffers import StagedBuffers
from headway.replica import FlatView, WrappedOptimizer


class LocalOptimizer(WrappedOptimizer, Handle):
    """Steps like the optimizer it wraps, and averages what ranks have moved every so many steps; made by `wrap`."""

    def __init__(
        self,
        inner: Optimizer,
        averaging: Averaging,
        parameters: FlatView,
        layout: BucketLayout,
        buffers: StagedBuffers,
        settings: LocalSettings,
        regrouping: Regrouping | None = None,
        unmoved: Sequence[Tensor] = (),
    ) -> None:
        super().__init__(inner)
        self._rounds = Rounds(
            averaging,
            parameters,
            layout,
            buffers,
            settings.outer,
            settings.residual_decay,
            forget=self.drop_nonfinite,
            regrouping=regrouping,
            unmoved=unmoved,
        )
        self._may_regroup = regrouping is not None
        self._num_before = 0
        self._is_evaluating = False
        self._is_closed = False

    @property
    def _averaging(self) -> Averaging:  # type: ignore[override]  # it changes with the ranks that take part
        return self._rounds.averaging

    @property
    def _takes_part(self) -> bool:
        """Whether there are other ranks, or some may come."""
        return self._averaging.num_ranks > 1 or self._may_regroup

    def join(self) -> None:
        """Take over what the others have in common, where this rank was away; called by `wrap`."""
        self._rounds.join()
        self._num_before = self.num_steps

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Let the inner optimizer move the model, then exchange if it is time; return what the inner one returns.

        **Cost**: 1/H of an exchange, and what of it the next steps do not hide.
        """
        self._check_open("step")
        loss = self.step_inner(closure)
        self._advance()
        return loss

    @torch.no_grad()
    def after_step(self) -> None:
        """Exchange if it is time, after a step that a framework has taken with the inner optimizer; instead of `step`.

        Also where a loss scaler has skipped the step: other ranks wait for this one's messages all the same.
        """
        self._check_open("after_step")
        self.check_frozen()
        self.share_with_inner()  # the framework may have loaded a state into the inner optimizer
        self._advance()

    def _advance(self) -> None:
        if self._takes_part:
            self._rounds.advance()
        else:
            self._rounds.state.num_steps += 1

    @torch.no_grad()
    def average_(self) -> None:
        """Average all that ranks have moved, whole, so that all have the same model. All ranks call it.

        Costs a dense all-reduce; at the end of training, or before the model is saved for others.
        """
        self._check_open("average_")
        if self._takes_part:
            self._rounds.average()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Put the common model in place inside the block, to evaluate or save it; all ranks have the same.

        It is that of the last round that was applied, and nothing is sent. Afterwards training continues as if the
        block had not been there.
        """
        self._check_not_evaluating("averaged")
        self._is_evaluating = True
        try:
            with self._rounds.in_common() if self._takes_part else nullcontext():
                yield
        finally:
            self._is_evaluating = False

    def _check_not_evaluating(self, what: str) -> None:
        if self._is_evaluating:
            raise ValueError(f"{what} inside averaged(): the model holds the common one there, leave it first")

    def _check_open(self, what: str) -> None:
        self._check_not_evaluating(what)
        if self._is_closed:
            raise ValueError("this optimizer is closed: wrap the model again")

    @property
    def num_steps(self) -> int:
        """How many steps were taken: by this rank or, where others went on without it, by them."""
        return self._rounds.state.num_steps

    @property
    def num_ranks(self) -> int:
        """How many ranks take part now."""
        return self._averaging.num_ranks

    @property
    def agreement(self) -> float:
        """How much what this rank has moved last agrees with the average; NaN if not known.

        1 if all ranks move alike, and 1/N on average if each moves by itself.
        """
        return self._rounds.agreement

    def statistics(self) -> Statistics:
        """Return the totals of all exchanges so far; ``step`` counts steps, and so do ``dense_bytes``."""
        totals = self._averaging.statistics()
        num_exchanges = sum(each.num_exchanges for each in totals.exchanges.values())
        per_exchange = (self.num_steps - self._num_before) / num_exchanges if num_exchanges else 1.0
        return replace(totals, step=self.num_steps, steps_per_exchange=per_exchange)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the inner optimizer and that of the rounds; on every rank, after the same step.

        It has the parameters and floating-point buffers of this rank, too. Still readable once closed.
        """
        self._check_not_evaluating("state_dict")
        return {"optimizer": self.inner.state_dict(), "local": checkpoint.save(self._rounds)}

    def load_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool = True) -> None:
        """Continue from a state of the same rank, model included. All ranks call it; one that does not fit is refused.

        Args:
            state_dict: From `state_dict` of the same rank.
            strict: If False, a state that does not fit gives a warning, and nothing is loaded.

        Raises:
            ValueError: The state of some rank does not fit; no rank has loaded anything then.
        """
        self._check_open("load_state_dict")
        try:
            checkpoint.load(self._rounds, state_dict, self.inner)
            self._num_before = self.num_steps
        except ValueError as error:
            if strict:
                raise
            warnings.warn(f"{error}: training goes on from the model as it is", stacklevel=2)
        self.share_with_inner()

    def abandon(self) -> None:
        """Give up before `close`, where this rank has failed: other ranks lose it now, and not by a deadline."""
        self._averaging.cut_off()

    def close(self) -> None:
        """End threads and connections, once training is over; a second call does nothing.

        It averages nothing, since other ranks may be gone: see `average_`.
        """
        if not self._is_closed:
            self._is_closed = True
            self._averaging.close(closing_deadline())
