"""Chooses the plan live: keeps what is known, notices when something has moved, and compares all plans."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headway.compress import Shape
from headway.exchange import PLAIN, CostModel, Plan
from headway.network import Change, Link
from headway.tuner.candidates import Bools, WarmUp
from headway.tuner.choosing import Choice, Situation
from headway.tuner.decision import Cause, Decision
from headway.tuner.front import Floats, Front, pareto_front
from headway.tuner.gains import GainModel
from headway.tuner.objectives import Objectives
from headway.tuner.pacing import Pace, Pacing
from headway.tuner.policies import Policy
from headway.tuner.step_reports import StepReport
from headway.tuner.times import TimeModel

_SWITCH_MARGIN, _REPEAT_MARGIN = 0.05, 0.05
"""A score must be better by the first margin, and by the second for each recent switch that no change of the link
explains."""
_RECENT_STEPS = 100
_WORTH_A_LOOK = 0.1
"""By how much the gain or the time of a step must have moved for plans to be compared again."""
_CHEAP_LOOK_S = 0.3
"""Plain sums that should add no more than this to a step are tried first: what they really take is worth knowing."""
_EXPECTED = ("start", "warm-up", "rarer")
"""Causes of switches that were to be expected: they do not count as restless."""
_NUM_STEADY = 6
"""Steps after a move of the link before times are compared with the prediction."""


@dataclass(frozen=True, kw_only=True)
class _Basis:
    """What the last comparison was based on."""

    step: int
    link: Link
    gain: float
    step_s: float
    effort: float
    has_curve: bool


class AdaptiveChooser:
    """Chooses among plans, by a policy.

    Args:
        plans: The plans to choose from.
        policy: Scores the plans on the Pareto front.
        warm_up: Which plans are allowed at a step.
        costs: Predicts costs.
        is_corrected: Whether momentum is corrected.
        pacing: How often ranks may talk; at every step by default.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        policy: Policy,
        warm_up: WarmUp,
        costs: CostModel,
        *,
        is_corrected: bool = False,
        pacing: Pacing | None = None,
    ) -> None:
        self._plans = list(plans)
        self._place_of = {plan: place for place, plan in enumerate(self._plans)}
        self._policy = policy
        self._warm_up = warm_up
        self._costs = costs
        self._is_corrected = is_corrected
        self._pacing = pacing or Pacing()
        self._ratios = np.array([plan.sent_ratio for plan in self._plans])
        self._gains = GainModel(self._plans, costs.num_ranks)
        self._times = TimeModel(self._plans)
        self._objectives: Objectives | None = None
        self._link_moved_at = 0
        self._chosen_at = 0
        """The step of the last switch."""
        self._own_s = 0.0
        self._basis: _Basis | None = None
        self._promised_gain = self._realised_gain = math.nan
        self._plain_s = math.inf
        """What plain sums took when they were last in force, as long as the network is the same: they take no more."""
        self._is_trying_plain = False
        """Whether plain sums are in force because they have not been timed yet."""
        self._is_slowing_down = False
        """Whether the last choice was to talk more rarely, which goes on step by step."""
        self._unexplained: deque[int] = deque(maxlen=_RECENT_STEPS)
        """The steps of switches that no change of the link explains."""

    @property
    def is_restless(self) -> bool:
        """Whether buckets are known, but no gain curve yet."""
        return self._objectives is not None and not self._has_curve

    @property
    def _has_curve(self) -> bool:
        return self._gains.curve is not None

    def set_buckets(self, shapes: Sequence[Shape], arrivals_s: Sequence[float]) -> None:
        self._objectives = Objectives(self._costs, self._plans, shapes, arrivals_s)

    def consider(self, situation: Situation) -> Choice | None:
        """Take in what ranks report; return a decision if something has moved that matters."""
        if self._objectives is None:
            return None
        if math.isfinite(situation.steps.own_s):
            self._own_s = situation.steps.own_s
        if self._basis is None:
            return self._start(situation)
        has_link_moved = situation.link != self._basis.link
        if has_link_moved:
            self._link_moved_at = situation.step
            self._times.doubt()
        self._learn_gains(situation.plan, situation.steps)
        self._pacing.learn(situation.steps.agreement)
        is_settled = situation.step - self._link_moved_at >= _NUM_STEADY
        if situation.is_steady and not situation.changes and is_settled:
            self._learn_times(situation.plan, situation.steps, situation.link)
        cause = self._cause(situation)
        return None if cause is None else self._answer(situation, cause)

    def _start(self, situation: Situation) -> Choice:
        """Choose the first plan, plain sums if it costs little to see what they take."""
        if situation.steps.has_curve:
            self._gains.learn_curve(np.array(situation.steps.curve), situation.steps.code_gains)
        self._learn_times(situation.plan, situation.steps, situation.link)
        self._link_moved_at = self._chosen_at = situation.step
        is_worth_trying = situation.plan.without_pace == PLAIN and self._plain_sync_s(situation.link) <= _CHEAP_LOOK_S
        decision = self._compare(situation, "start", only=PLAIN if is_worth_trying else None)
        return Choice(decision.plan, decision)

    def _plain_sync_s(self, link: Link) -> float:
        return float(self._front_of(np.array([self._place_of[PLAIN]]), link).sync_s[0])

    def _answer(self, situation: Situation, cause: Cause) -> Choice | None:
        if situation.changes:
            self._unexplained.clear()
            self._plain_s = math.inf
        chosen_at = self._chosen_at
        decision = self._compare(situation, cause)
        if cause in ("gain", "pace", "warm-up"):
            decision = replace(decision, cause=self._true_cause(decision, chosen_at))
        if decision.is_switch and not situation.changes and decision.cause not in _EXPECTED:
            self._unexplained.append(situation.step)
        return Choice(decision.plan, decision) if situation.changes or decision.is_switch else None

    def _learn_gains(self, plan: Plan, steps: StepReport) -> None:
        """Learn from the gain curve, and from the realised gain of the plan in force."""
        if steps.has_curve:
            self._gains.learn_curve(np.array(steps.curve), steps.code_gains)
        if math.isfinite(steps.realised_gain):
            self._realised_gain = self._gains.counted(plan, steps.realised_gain) / plan.local_steps
            if steps.has_curve:
                self._gains.learn_realised(plan, steps.realised_gain, np.array(steps.total_curve))

    def _learn_times(self, plan: Plan, steps: StepReport, link: Link) -> None:
        assert self._objectives is not None
        compress_s, sync_s = self._objectives.at(link)
        place = self._place_of[plan.without_pace]
        self._times.learn(plan, float(compress_s[place] + sync_s[place]), steps.exposed_s)
        if plan.without_pace == PLAIN and math.isfinite(steps.exposed_s):
            self._plain_s = steps.exposed_s

    def _cause(self, situation: Situation) -> Cause | None:
        """Return what has moved enough to compare plans again, if anything has."""
        basis = self._basis
        assert basis is not None
        if situation.link != basis.link:
            return _what_moved(basis.link, situation.link, situation.changes)
        if not self._has_curve:
            return None
        if self._is_trying_plain and math.isfinite(self._plain_s):
            return "start"
        front = self._in_force(situation.plan, situation.link)
        if not basis.has_curve or _has_moved(float(front.gain[0]), basis.gain):
            return "gain"
        if _has_moved(float(front.step_s[0]), basis.step_s):
            return "pace"
        if _has_moved(float(front.effort[0]), basis.effort):
            return "agreement"
        if self._is_slowing_down:
            return "rarer"
        return "warm-up" if self._newly_allowed(situation.step, basis.step).any() else None

    def _true_cause(self, decision: Decision, chosen_at: int) -> Cause:
        """Return the warm-up as the cause if, and only if, the plan was not allowed when the last one was chosen."""
        place = self._place_of[decision.plan.without_pace]
        if decision.is_switch and self._newly_allowed(decision.step, chosen_at)[place]:
            return "warm-up"
        return "gain" if decision.cause == "warm-up" else decision.cause

    def _newly_allowed(self, step: int, step_before: int) -> Bools:
        """Return which plans the warm-up allows at a step and did not before, by the gains that are predicted now."""
        gains = self._gains.predict()
        now, before = (self._warm_up.allows(each, self._ratios, gains) for each in (step, step_before))
        return now & ~before

    def _compare(self, situation: Situation, cause: Cause, only: Plan | None = None) -> Decision:
        """Compare all plans that the warm-up allows, or one with that in force, and take the best."""
        step, plan, link = situation.step, situation.plan, situation.link
        here = self._place_of[plan.without_pace]
        allowed = np.flatnonzero(self._warm_up.allows(step, self._ratios, self._gains.predict()))
        if only is not None:
            allowed = np.array([self._place_of[only]])
        self._is_trying_plain = only is not None
        at_every_step = allowed[pareto_front(self._front_of(allowed, link).objectives)]
        front = self._pacing.spread(self._front_of(at_every_step, link), Pace.of(plan))
        on_front = pareto_front(front.objectives)
        front = front.only(on_front)
        if plan not in front.plans:
            front = front.joined(self._in_force(plan, link))
        mine = front.plans.index(plan)
        front = replace(front, in_force=mine)
        scores = self._scores(front) if self._has_curve else np.ones(len(front))
        best = int(scores[: len(on_front)].argmax())
        may_stay = here in allowed or not self._has_curve
        chosen = mine if may_stay and scores[best] < self._margin(step) * scores[mine] else best
        link_before = link if self._basis is None else self._basis.link
        gain, step_s = float(front.gain[chosen]), float(front.step_s[chosen])
        self._is_slowing_down = front.plans[chosen].local_steps > plan.local_steps
        effort = float(front.effort[chosen])
        self._basis = _Basis(step=step, link=link, gain=gain, step_s=step_s, effort=effort, has_curve=self._has_curve)
        decision = Decision(
            step=step,
            cause=cause,
            before=plan,
            plan=front.plans[chosen],
            link_before=link_before,
            link=link,
            own_s=self._own_s,
            step_s=step_s,
            step_s_before=float(front.step_s[mine]),
            gain=gain,
            gain_before=float(front.gain[mine]),
            promised_gain=self._promised_gain,
            realised_gain=self._realised_gain,
            slope=self._gains.slope,
            gain_curve=() if self._gains.curve is None else tuple(self._gains.curve.tolist()),
            front=front,
        )
        if decision.is_switch:
            self._chosen_at = step
            self._promised_gain, self._realised_gain = gain, math.nan
        return decision

    def _margin(self, step: int) -> float:
        """Return by what factor a score must be better than that of the plan in force."""
        num_recent = sum(step - each <= _RECENT_STEPS for each in self._unexplained)
        return 1 + _SWITCH_MARGIN + _REPEAT_MARGIN * num_recent

    def _in_force(self, plan: Plan, link: Link) -> Front:
        """Return a plan alone, at its pace."""
        return self._pacing.at(self._front_of(np.array([self._place_of[plan.without_pace]]), link), Pace.of(plan))

    def _front_of(self, places: np.ndarray, link: Link) -> Front:
        """Return some plans with their predicted times and gains, if ranks talk at every step."""
        assert self._objectives is not None
        factors = self._times.factors()
        compress_s, sync_s = (factors * each for each in self._objectives.at(link))
        if PLAIN in self._place_of:
            plain = self._place_of[PLAIN]
            sync_s[plain] = min(sync_s[plain], max(self._plain_s - compress_s[plain], 0.0))
        plans = [self._plans[place] for place in places]
        return Front(
            plans,
            compress_s[places],
            sync_s[places],
            self._gains.predict()[places],
            self._own_s,
            is_corrected=self._is_corrected,
        )

    def _scores(self, front: Front) -> Floats:
        scores = np.asarray(self._policy(front), dtype=np.float64)
        if scores.shape != (len(front),) or not (np.isfinite(scores) & (scores > 0)).all():
            raise ValueError(f"the policy gave {scores}, but must give a number above 0 for each of {len(front)} plans")
        return scores


def _has_moved(now: float, before: float) -> bool:
    return abs(now - before) > _WORTH_A_LOOK * max(before, 1e-9)


def _what_moved(before: Link, now: Link, changes: Sequence[Change]) -> Cause:
    """Return what has moved more, among what was detected as a change if that has moved much since the last look."""
    moves: dict[Cause, float] = {
        "latency": abs(math.log(max(now.latency_s, 1e-9) / max(before.latency_s, 1e-9))),
        "bandwidth": abs(math.log(now.bandwidth_bps / before.bandwidth_bps)),
    }
    detected = {change.what for change in changes}
    large = [cause for cause in moves if cause in detected and moves[cause] > _WORTH_A_LOOK]
    return max(sorted(large or moves), key=moves.__getitem__)
