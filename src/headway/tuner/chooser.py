"""What rank 0 does: keep what is known, see when something has moved, and look at all plans anew."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headway.compress import Shape
from headway.exchange import CostModel, Plan
from headway.exchange.plan import PLAIN
from headway.kernels import GAIN_RATIOS
from headway.network import Change, Link
from headway.tuner.decision import Decision
from headway.tuner.front import Floats, Front, pareto_front
from headway.tuner.gains import GainModel
from headway.tuner.objectives import Objectives
from headway.tuner.policies import Policy
from headway.tuner.reports import Report
from headway.tuner.times import TimeModel
from headway.tuner.warm_up import WarmUp

_WORTH_A_SWITCH, _WORTH_ANOTHER = 0.05, 0.05
"""By so much a score must be better, and so much more for each switch of late that no change of the link explains."""
_OF_LATE = 100
"""Steps."""
_WORTH_A_LOOK = 0.1
"""By so much the link, the gain or the time of a step must have moved for plans to be looked at anew."""
_NUM_STEADY = 6
"""Steps after a move of the link before times are held against what was foretold."""


@dataclass(frozen=True, kw_only=True)
class _Known:
    """What the last look rested on."""

    step: int
    link: Link
    gain: float
    step_s: float
    has_curve: bool


class Chooser:
    """Chooses among plans, by a policy.

    Args:
        plans: All there are.
        policy: Scores what is on the front.
        warm_up: How small a ratio may be at a step.
        costs: Foretells exchanges.
    """

    def __init__(self, plans: Sequence[Plan], policy: Policy, warm_up: WarmUp, costs: CostModel) -> None:
        self._plans = list(plans)
        self._index_of = {plan: index for index, plan in enumerate(self._plans)}
        self._policy = policy
        self._warm_up = warm_up
        self._costs = costs
        self._ratios = np.array([plan.ratio if plan.sends_some else 1.0 for plan in self._plans])
        self._gains = GainModel(self._plans, costs.num_ranks)
        self._times = TimeModel(self._plans)
        self._objectives: Objectives | None = None
        self._link = costs.calibration.link
        self._link_moved_at = 0
        self._own_s = 0.0
        self._known: _Known | None = None
        self._promised_gain = self._realised_gain = math.nan
        self._plain_s = math.inf
        """What plain sums took when they were last in force, as long as the network is the same: they take no more."""
        self._unexplained: deque[int] = deque(maxlen=_OF_LATE)
        """The steps of switches that no change of the link explains."""

    @property
    def is_ready(self) -> bool:
        """Whether it is known what buckets there are."""
        return self._objectives is not None

    @property
    def has_curve(self) -> bool:
        """Whether anything is known of gains."""
        return self._gains.curve is not None

    def open(
        self, step: int, plan: Plan, report: Report, shapes: Sequence[Shape], arrivals_s: Sequence[float]
    ) -> Decision:
        """Learn what buckets there are, and choose the first plan."""
        self._objectives = Objectives(self._costs, self._plans, shapes, arrivals_s)
        self._own_s = report.own_s if math.isfinite(report.own_s) else 0.0
        if report.has_curve:
            self._gains.learn_curve(report.curve)
        self._learn_times(plan, report, self._link)
        self._link_moved_at = step
        self._known = None
        return self._choose(step, plan, "start", self._link)

    def consider(
        self, step: int, plan: Plan, report: Report, link: Link, changes: Sequence[Change], *, is_steady: bool
    ) -> Decision | None:
        """Take in what ranks report; return a decision if something has moved that matters.

        Args:
            step: From which a decision would count.
            plan: The one in force.
            report: Of all ranks.
            link: As it is now.
            changes: Those that were noticed just now.
            is_steady: Whether no change is suspected.
        """
        if math.isfinite(report.own_s):
            self._own_s = report.own_s
        self._follow_link(step, link)
        self._learn_gains(plan, report)
        if is_steady and not changes and step - self._link_moved_at >= _NUM_STEADY:
            self._learn_times(plan, report, link)
        cause = self._cause(step, plan, link, changes)
        if cause is None:
            return None
        if changes:
            self._unexplained.clear()
            self._plain_s = math.inf
        decision = self._choose(step, plan, cause, link)
        if decision.is_switch and not changes and cause != "warm-up":
            self._unexplained.append(step)
        return decision if changes or decision.is_switch else None

    def _follow_link(self, step: int, link: Link) -> None:
        if _link_has_moved(link, self._link):
            self._link, self._link_moved_at = link, step
            self._times.doubt()

    def _learn_gains(self, plan: Plan, report: Report) -> None:
        """Learn the curve, and from what has come of the plan in force."""
        if report.has_curve:
            self._gains.learn_curve(report.curve)
        if math.isfinite(report.realised_gain):
            self._realised_gain = self._gains.counted(plan, report.realised_gain)
            if report.has_curve:
                self._gains.learn_realised(plan, report.realised_gain, report.total_curve)

    def _learn_times(self, plan: Plan, report: Report, link: Link) -> None:
        assert self._objectives is not None
        compress_s, sync_s = self._objectives.at(link)
        index = self._index_of[plan]
        self._times.learn(plan, float(compress_s[index] + sync_s[index]), report.exposed_s)
        if plan == PLAIN and math.isfinite(report.exposed_s):
            self._plain_s = report.exposed_s

    def _cause(self, step: int, plan: Plan, link: Link, changes: Sequence[Change]) -> str | None:
        """Return what has moved enough for a new look, if anything has."""
        known = self._known
        assert known is not None
        if _link_has_moved(link, known.link):
            return _what_moved(known.link, link, changes)
        if self._warm_up.is_on(step) or self._warm_up.is_on(known.step):
            return "warm-up"
        if not self.has_curve:
            return None
        front = self._front_of(np.array([self._index_of[plan]]), link)
        if not known.has_curve or _has_moved(float(front.gain[0]), known.gain):
            return "gain"
        return "pace" if _has_moved(float(front.step_s[0]), known.step_s) else None

    def _choose(self, step: int, plan: Plan, cause: str, link: Link) -> Decision:
        """Look at all plans."""
        here = self._index_of[plan]
        allowed = np.flatnonzero(self._ratios >= self._warm_up.least_ratio(step))
        on_front = allowed[pareto_front(self._front_of(allowed, link).objectives)]
        shown = on_front if here in on_front else np.append(on_front, here)
        mine = int(np.flatnonzero(shown == here)[0])
        front = replace(self._front_of(shown, link), in_force=mine)
        num_of_late = sum(step - each <= _OF_LATE for each in self._unexplained)
        worth = 1 + _WORTH_A_SWITCH + _WORTH_ANOTHER * num_of_late
        scores = self._scores(front) if self.has_curve else np.ones(len(front))
        best = int(scores[: len(on_front)].argmax())
        may_stay = here in allowed or not self.has_curve
        chosen = mine if may_stay and scores[best] < worth * scores[mine] else best
        known_link = link if self._known is None else self._known.link
        gain, step_s = float(front.gain[chosen]), float(front.step_s[chosen])
        self._known = _Known(step=step, link=link, gain=gain, step_s=step_s, has_curve=self.has_curve)
        decision = Decision(
            step=step,
            cause=cause,
            before=plan,
            plan=front.plans[chosen],
            link_before=known_link,
            link=link,
            own_s=self._own_s,
            step_s=step_s,
            step_s_before=float(front.step_s[mine]),
            gain=gain,
            gain_before=float(front.gain[mine]),
            promised_gain=self._promised_gain,
            realised_gain=self._realised_gain,
            slope=self._gains.slope,
            gain_curve=tuple([math.nan] * len(GAIN_RATIOS) if self._gains.curve is None else self._gains.curve),
            front=front,
        )
        if decision.is_switch:
            self._promised_gain, self._realised_gain = gain, math.nan
        return decision

    def _front_of(self, indices: np.ndarray, link: Link) -> Front:
        """Return some plans with what they take and teach."""
        assert self._objectives is not None
        factors = self._times.factors()
        compress_s, sync_s = (factors * each for each in self._objectives.at(link))
        plain = self._index_of[PLAIN]
        sync_s[plain] = min(sync_s[plain], max(self._plain_s - compress_s[plain], 0.0))
        plans = [self._plans[index] for index in indices]
        return Front(plans, compress_s[indices], sync_s[indices], self._gains.predict()[indices], self._own_s)

    def _scores(self, front: Front) -> Floats:
        """Return what the policy says."""
        scores = np.asarray(self._policy(front), dtype=np.float64)
        if scores.shape != (len(front),) or not (np.isfinite(scores) & (scores > 0)).all():
            raise ValueError(f"the policy gave {scores}, but must give a number above 0 for each of {len(front)} plans")
        return scores


def _has_moved(now: float, before: float) -> bool:
    return abs(now - before) > _WORTH_A_LOOK * max(before, 1e-9)


def _link_has_moved(now: Link, before: Link) -> bool:
    return _has_moved(now.latency_s, before.latency_s) or _has_moved(now.bandwidth_bps, before.bandwidth_bps)


def _what_moved(before: Link, now: Link, changes: Sequence[Change]) -> str:
    """Return what has moved more; of what was noticed as a change, if that has moved much since the last look."""
    moves = {
        "latency": abs(math.log(max(now.latency_s, 1e-9) / max(before.latency_s, 1e-9))),
        "bandwidth": abs(math.log(now.bandwidth_bps / before.bandwidth_bps)),
    }
    told = {change.what for change in changes if moves.get(change.what, 0.0) > _WORTH_A_LOOK} or set(moves)
    return max(sorted(told), key=moves.__getitem__)
