"""The controller: every rank reports, rank 0 chooses, and all follow."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from headway.compress import Shape
from headway.exchange import ExchangeRecord, Plan
from headway.exchange.plan import PLAIN
from headway.kernels import GAIN_RATIOS, GainCurve
from headway.network import Change, Link
from headway.tuner.chooser import Chooser
from headway.tuner.decision import CAUSES, Decision
from headway.tuner.front import Front
from headway.tuner.journal import Journal
from headway.tuner.reports import NUM_REPORTS, Observer, Report

_NUM_DECISIONS = 1000
_FIGURES = (
    *("step", "own_s", "step_s", "step_s_before", "gain", "gain_before"),
    *("promised_gain", "realised_gain", "slope"),
)
"""Those of a decision that travel as they are."""
_NUM_HEAD = 6
"""Numbers before them: the plan's, the cause's, and the two links."""
_NO_CHOICE = -1.0


class Controller:
    """Lets all ranks follow the same plan, chosen live: the `headway.exchange.Advisor` of an adaptive run.

    All hold the same list of plans, and follow by number. `decide` runs on the council's thread, the rest on the
    engine's; the council is over before `adopt` is called with its answer.

    Args:
        plans: All there are to choose from, in the same order on all ranks.
        chooser: Chooses; at rank 0 alone.
        journal: Where decisions go, if anywhere.
    """

    def __init__(self, plans: Sequence[Plan], chooser: Chooser | None = None, journal: Journal | None = None) -> None:
        self._plans = list(plans)
        self._chooser = chooser
        self._journal = journal
        self._plan = PLAIN
        self._observer = Observer()
        self._front: Front | None = None
        """Of the answer that is to be adopted next; known to rank 0."""
        self._decisions: deque[Decision] = deque(maxlen=_NUM_DECISIONS)

    num_reports = NUM_REPORTS
    num_answers = _NUM_HEAD + len(_FIGURES) + len(GAIN_RATIOS)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The latest, oldest first."""
        return tuple(self._decisions)

    def plan_of(self, step: int) -> Plan:
        """Return the plan in force; answers are adopted at the step from which they count."""
        del step
        return self._plan

    def resume(self, number: int) -> None:
        """Go on with a plan by its number, as all ranks do, and forget what was seen of steps so far."""
        self._plan = self._plans[number]
        self._observer = Observer()

    def number_of(self, fields: Mapping[str, Any] | None) -> int:
        """Return the number of the plan of an earlier run; that of the one in force, if there is none like it."""
        numbers = [number for number, plan in enumerate(self._plans) if vars(plan) == fields]
        if fields is not None and not numbers:
            warnings.warn(f"the plan of the state is not one to choose from: going on with {self._plan}", stacklevel=3)
        return numbers[0] if numbers else self._plans.index(self._plan)

    def note_step(self, own_s: float, exposed_s: float) -> None:
        """Take in how long a step took beside the exchange, and how much longer that made it."""
        self._observer.note_step(own_s, exposed_s)

    def note_curves(self, gradient: GainCurve, total: GainCurve) -> None:
        """Take in what a bucket could send, of the gradient alone and with the residual."""
        self._observer.curves.append((gradient, total))

    def report(self, records: Sequence[ExchangeRecord]) -> list[float]:
        """Return what this rank has seen of its latest steps."""
        return self._observer.report(records).numbers

    def open(self, step: int, shapes: Sequence[Shape], arrivals_s: Sequence[float]) -> list[float]:
        """Choose the first plan, at rank 0, by what it has seen of the first steps."""
        report = self._observer.report([])
        if self._chooser is None:
            return self._answer_of(None)
        return self._answer_of(self._chooser.open(step, self._plan, report, shapes, arrivals_s))

    def decide(
        self, step: int, reports: Tensor, link: Link, changes: Sequence[Change], *, is_steady: bool
    ) -> list[float]:
        """Let the chooser consider what ranks report, at rank 0."""
        if self._chooser is None or not self._chooser.is_ready:
            return self._answer_of(None)
        report = Report.together(reports.numpy())
        return self._answer_of(self._chooser.consider(step, self._plan, report, link, changes, is_steady=is_steady))

    @property
    def is_restless(self) -> bool:
        """Whether more should be known soon: nothing is known of gains yet."""
        return self._chooser is not None and self._chooser.is_ready and not self._chooser.has_curve

    def adopt(self, answer: Sequence[float]) -> None:
        """Follow an answer from now on."""
        if answer[0] == _NO_CHOICE:
            return
        plan, cause = self._plans[int(answer[0])], CAUSES[int(answer[1])]
        figures = dict(zip(_FIGURES, answer[_NUM_HEAD:], strict=False))
        decision = Decision(
            cause=cause,
            before=self._plan,
            plan=plan,
            link_before=Link(latency_s=answer[2], bandwidth_bps=answer[3]),
            link=Link(latency_s=answer[4], bandwidth_bps=answer[5]),
            gain_curve=tuple(answer[_NUM_HEAD + len(_FIGURES) :]),
            front=self._front,
            **{**figures, "step": int(figures["step"])},  # type: ignore[arg-type]
        )
        self._decisions.append(decision)
        if decision.is_switch:
            self._plan = decision.plan
            self._observer.note_switch(decision.step)
        if self._journal is not None:
            self._journal.note(decision)

    def _answer_of(self, decision: Decision | None) -> list[float]:
        """Return a decision as numbers."""
        if decision is None:
            return [_NO_CHOICE] * self.num_answers
        self._front = decision.front
        links = [(link.latency_s, link.bandwidth_bps) for link in (decision.link_before, decision.link)]
        head = [self._plans.index(decision.plan), CAUSES.index(decision.cause), *np.ravel(links)]
        figures = [getattr(decision, name) for name in _FIGURES]
        return [float(number) for number in (*head, *figures, *decision.gain_curve)]
