"""The messages of control rounds; `headway.tuner.codec` turns them into numbers and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from headway.exchange import Plan
from headway.network import Estimate, Link
from headway.tuner.codec import AtMost
from headway.tuner.decision import Decision
from headway.tuner.step_reports import StepReport

MOST_SPANS = 16
"""Exchanges that a report tells of: the latest. A report without step times stays below 300 bytes."""


class NextRounds(NamedTuple):
    """When the next control rounds are held, and after how many steps an answer takes effect."""

    next_round: int
    next_thorough: int
    is_restless: bool
    delay: int


@dataclass(frozen=True)
class Span:
    """When the largest collective of an exchange began and ended, on the rank's own clock."""

    begun_at: float
    ended_at: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a rank reports in a control round."""

    spans: Annotated[tuple[Span, ...], AtMost(MOST_SPANS)]


@dataclass(frozen=True, kw_only=True)
class LearningReport(Report):
    """What a rank reports where the plan is chosen live: also the times and gains of its steps."""

    steps: StepReport


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What rank 0 answers in a control round."""

    has_latency_changed: bool
    has_bandwidth_changed: bool
    usual: Link
    """The link before the changes."""
    estimate: Estimate
    rounds: NextRounds
    plan: Plan | None = None
    """The plan to follow from now on; None to keep the one in force."""


@dataclass(frozen=True, kw_only=True)
class DecisionAnswer(Answer):
    """What rank 0 answers where the plan is chosen live: also why."""

    decision: Decision | None = None
