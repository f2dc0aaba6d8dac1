"""What rank 0 makes of the reports of a control round: an estimate of the link, a plan, and when to meet again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headway.collectives import RankReports
from headway.errors import MessageError
from headway.exchange import ExchangeRecord, Plan
from headway.network import Change, Link
from headway.tuner.choosing import Choice, Chooser, Situation
from headway.tuner.codec import Codec
from headway.tuner.decision import Decision
from headway.tuner.link_tracker import Tracker
from headway.tuner.messages import Answer, DecisionAnswer, LearningReport, NextRounds, Report
from headway.tuner.rounds import RoundSchedule, delay_for
from headway.tuner.step_reports import StepReport

MOST_PAUSE_S = 0.02
"""The longest pause between the pings of a control round."""
_NUM_LATENCIES = 6
"""The latencies that a brief control round takes."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a control round is asked, and what was in force when it began."""

    step: int
    delay: int
    """Steps until the answer holds."""
    plan: Plan
    link: Link
    is_opening: bool
    """Whether this is the first choice for new buckets, made for the link that is in force."""
    is_following: bool
    """Whether the link in force follows the estimate."""
    step_s: float
    """The time of a step; 0 if it is not known."""
    timed: Sequence[ExchangeRecord]
    """This rank's own exchanges whose spans the reports tell of."""

    def followed(self, estimate: Link) -> Link:
        """Return the link that the answer puts in force: the estimate if it has moved by more than 10%."""
        follows = self.is_following and not self.is_opening
        return estimate if follows and estimate.has_moved(self.link) else self.link


class Answerer:
    """Answers control rounds, on rank 0 and perhaps on the transport's thread.

    Args:
        codec: Turns messages into numbers and back.
        tracker: Follows the link.
        schedule: When rounds are held.
        least_delay: The least number of steps from the start of a round until its answer holds.
        chooser: Chooses the plan; None where there is nothing to choose.
        is_adaptive: Whether ranks report their steps, and answers tell decisions.
    """

    def __init__(
        self,
        codec: Codec,
        tracker: Tracker,
        schedule: RoundSchedule,
        least_delay: int,
        chooser: Chooser | None,
        *,
        is_adaptive: bool,
    ) -> None:
        self._codec = codec
        self._tracker = tracker
        self._schedule = schedule
        self._least_delay = least_delay
        self._chooser = chooser
        self._is_adaptive = is_adaptive
        self._report_kind = LearningReport if is_adaptive else Report
        self.latest: Decision | None = None
        """The latest decision, with its front, which answers leave out."""

    def answer(self, question: Question, gathered: RankReports) -> Tensor:
        """Return the answer as numbers.

        Raises:
            MessageError: A rank's report cannot be read; it is named.
        """
        reports = [self._read(rank, row) for rank, row in enumerate(gathered.reports)]
        usual = self._tracker.usual
        changes = self._tracker.observe(question.timed, reports, gathered)
        is_restless = bool(changes) or self._tracker.is_suspicious
        choice = self._choose(question, reports, changes, is_steady=not is_restless)
        is_restless = is_restless or (self._chooser is not None and self._chooser.is_restless)
        changed = {change.what for change in changes}
        fields: dict[str, Any] = {
            "has_latency_changed": "latency" in changed,
            "has_bandwidth_changed": "bandwidth" in changed,
            "usual": usual,
            "estimate": self._tracker.estimate,
            "rounds": self._next_rounds(question, is_restless=is_restless),
            "plan": None if choice is None else choice.plan,
        }
        if not self._is_adaptive:
            return self._codec.encode(Answer(**fields))
        self.latest = None if choice is None else choice.decision
        return self._codec.encode(DecisionAnswer(**fields, decision=self.latest))

    def _read(self, rank: int, numbers: Tensor) -> Report:
        try:
            return self._codec.decode(self._report_kind, numbers)
        except MessageError as error:
            raise error.from_peer(rank) from error

    def _choose(
        self, question: Question, reports: Sequence[Report], changes: Sequence[Change], *, is_steady: bool
    ) -> Choice | None:
        if self._chooser is None:
            return None
        steps = [report.steps for report in reports if isinstance(report, LearningReport)]
        situation = Situation(
            step=question.step + question.delay,
            plan=question.plan,
            steps=StepReport.combined(steps),
            link=question.followed(self._tracker.estimate.link),
            changes=changes,
            is_steady=is_steady,
        )
        return self._chooser.consider(situation)

    def _next_rounds(self, question: Question, *, is_restless: bool) -> NextRounds:
        if question.is_opening:
            return self._schedule.rounds
        latency_s = self._tracker.estimate.link.latency_s
        round_s = _NUM_LATENCIES * latency_s + min(latency_s, MOST_PAUSE_S)
        delay = delay_for(round_s, question.step_s, self._least_delay)
        return self._schedule.following(question.step, is_restless=is_restless, delay=delay)
