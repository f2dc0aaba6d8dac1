"""What choosers have in common, and the one for a fixed plan, which has only its fusion left to choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headway.compress import Shape
from headway.exchange import CostModel, Plan
from headway.network import Change, Link
from headway.tuner.decision import Decision
from headway.tuner.objectives import Objectives
from headway.tuner.step_reports import StepReport


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What a choice is based on."""

    step: int
    """The first step for which the choice would hold."""
    plan: Plan
    """The plan in force."""
    steps: StepReport
    """The steps of all ranks."""
    link: Link
    """The link in force from that step on."""
    changes: Sequence[Change] = ()
    """The changes of the link that have just become certain."""
    is_steady: bool = True
    """Whether no change of the link is suspected."""


class Choice(NamedTuple):
    """A plan, and the decision that explains it, if there is one."""

    plan: Plan
    decision: Decision | None = None


class Chooser(Protocol):
    """Chooses the plan, on rank 0."""

    def set_buckets(self, shapes: Sequence[Shape], arrivals_s: Sequence[float]) -> None:
        """Learn the buckets and when they arrive; the next call of `consider` then chooses afresh."""

    def consider(self, situation: Situation) -> Choice | None:
        """Return a choice if there is something new to choose by."""

    @property
    def is_restless(self) -> bool:
        """Whether something is missing that thorough control rounds would bring."""


class FusionChooser:
    """Chooses the cheapest of some plans that differ in fusion, for new buckets and when the link has changed.

    Args:
        plans: The plans; of equally cheap ones the first is taken.
        costs: Predicts costs.
    """

    is_restless = False

    def __init__(self, plans: Sequence[Plan], costs: CostModel) -> None:
        self._plans = list(plans)
        self._costs = costs
        self._objectives: Objectives | None = None
        self._has_chosen = False

    def set_buckets(self, shapes: Sequence[Shape], arrivals_s: Sequence[float]) -> None:
        self._objectives = Objectives(self._costs, self._plans, shapes, arrivals_s)
        self._has_chosen = False

    def consider(self, situation: Situation) -> Choice | None:
        if self._objectives is None or (self._has_chosen and not situation.changes):
            return None
        self._has_chosen = True
        compress_s, sync_s = self._objectives.at(situation.link)
        return Choice(self._plans[int((compress_s + sync_s).argmin())])
