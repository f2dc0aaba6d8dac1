"""The controller: every rank reports, rank 0 looks at all plans anew when something has moved, and all follow."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from headway.collectives import NATIVE
from headway.compress import Shape
from headway.exchange import CostModel, ExchangeRecord, Plan
from headway.kernels import GAIN_RATIOS, GainCurve
from headway.network import Change, Link
from headway.tuner.decision import CAUSES, Decision
from headway.tuner.front import Floats, Front, pareto_front
from headway.tuner.gains import GainModel, Promise
from headway.tuner.journal import Journal
from headway.tuner.objectives import Objectives
from headway.tuner.policies import Policy
from headway.tuner.warm_up import WarmUp

_WORTH_A_SWITCH = 1.05
_WORTH_A_LOOK = 0.1
"""By so much the link, the gain or the pace must have moved for plans to be looked at anew."""
_NUM_SETTLING = 8
"""Steps after a switch before gains are held against what was promised."""
_NUM_STEPS = 10
"""The time of a step is the median of so many."""
_NUM_DECISIONS = 1000
_NO_CHOICE = -1.0
_NUM_FIGURES = 15
_NUM_OWN = 2
"""Numbers of a report before the curve: a step's own time, and the realised gain."""


@dataclass(kw_only=True)
class _Known:
    """What the last decision rested on."""

    link: Link
    step: int = 0
    has_curve: bool = False
    gain: float = 1.0
    own_s: float = 0.0


class Controller:
    """Chooses the plan, live.

    Rank 0 keeps what is known: the gain model and the time of every plan. The others hold the same list of plans,
    and follow by number. A switch needs a score that is 5% better: it never flaps.

    Args:
        plans: All there are to choose from, in the same order on all ranks.
        policy: Scores what is on the front.
        warm_up: How small a ratio may be at a step.
        costs: Foretells exchanges.
        journal: Where decisions go; None on ranks that keep none.
    """

    def __init__(
        self, plans: Sequence[Plan], policy: Policy, warm_up: WarmUp, costs: CostModel, journal: Journal | None
    ) -> None:
        self._plans = list(plans)
        self._policy = policy
        self._warm_up = warm_up
        self._costs = costs
        self._journal = journal
        self._ratios = np.array([plan.ratio if plan.sends_some else 1.0 for plan in self._plans])
        self._gains = GainModel(self._plans, costs.num_ranks)
        self._objectives: Objectives | None = None
        self._plan = Plan(exchange="dense", algorithm=NATIVE, fusion="bucket")
        self._since = 0
        """The step of the last switch."""
        self._curves: list[GainCurve] = []
        self._own_s: deque[float] = deque(maxlen=_NUM_STEPS)
        self._known = _Known(link=costs.calibration.link)
        self._front: Front | None = None
        self._promise: Promise | None = None
        self._promise_is_kept = False
        self._realised = math.nan
        self._seen_at = 0
        """The step that the last council was for."""
        self._decisions: deque[Decision] = deque(maxlen=_NUM_DECISIONS)

    num_reports = _NUM_OWN + len(GAIN_RATIOS)
    num_answers = _NUM_FIGURES + len(GAIN_RATIOS)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The latest, oldest first."""
        return tuple(self._decisions)

    def plan_of(self, step: int) -> Plan:
        """Return the plan in force; answers are adopted at the step from which they count."""
        del step
        return self._plan

    def resume(self, fields: Mapping[str, Any]) -> None:
        """Go on with the plan of an earlier run, if it is one to choose from."""
        self._plan = next((plan for plan in self._plans if vars(plan) == fields), self._plan)

    # What a rank sees.

    def note_step(self, own_s: float, exposed_s: float) -> None:
        """Take in how long a step took beside the exchange."""
        del exposed_s
        self._own_s.append(own_s)

    def note_curve(self, curve: GainCurve) -> None:
        """Take in what a bucket could send."""
        self._curves.append(curve)

    def report(self, records: Sequence[ExchangeRecord]) -> list[float]:
        """Return a step's own time, the realised gain of the plan in force, and the gain curve."""
        own_s = statistics.median(self._own_s) if self._own_s else math.nan
        settled = [record for record in records if record.step >= self._since + _NUM_SETTLING]
        gains = [record.gain for record in settled if math.isfinite(record.gain)]
        weights = [record.dense_bytes for record in settled if math.isfinite(record.gain)]
        realised = float(np.average(gains, weights=weights)) if sum(weights) > 0 else math.nan
        curves, self._curves = self._curves, []
        return [own_s, realised, *_together(curves)]

    # What rank 0 does.

    def open(self, step: int, shapes: Sequence[Shape], arrivals_s: Sequence[float]) -> list[float]:
        """Learn what buckets there are, and choose the first plan by what this rank has seen of two dense steps."""
        if self._journal is None:
            return [_NO_CHOICE] * self.num_answers
        self._objectives = Objectives(self._costs, self._plans, shapes, arrivals_s)
        own_s, _, *curve = self.report([])
        self._take_in_curve(np.array(curve))
        self._known.own_s = own_s if math.isfinite(own_s) else 0.0
        return self._choose(step, "start", self._known.link)

    def decide(self, step: int, reports: Tensor, link: Link, changes: Sequence[Change]) -> list[float]:
        """Take in what ranks report; if something has moved, look at all plans anew."""
        if self._objectives is None:
            return [_NO_CHOICE] * self.num_answers
        numbers = reports.numpy()
        self._gains.forget_residual(self._plan, step - self._seen_at)
        self._seen_at = step
        own_s = numbers[:, 0]
        pace_s = float(own_s[np.isfinite(own_s)].max(initial=0.0))  # everybody waits for the slowest
        curve = _mean_of_finite(numbers[:, _NUM_OWN:])
        self._realised = float(_mean_of_finite(numbers[:, 1:2])[0])
        self._take_in_gains(curve)
        cause = self._cause(step, link, changes, pace_s)
        self._known.own_s = pace_s or self._known.own_s
        if cause is None:
            return [_NO_CHOICE] * self.num_answers
        answer = self._choose(step, cause, link)
        is_news = bool(changes) or self._plans[int(answer[0])] != self._plan
        return answer if is_news else [_NO_CHOICE] * self.num_answers

    @property
    def is_restless(self) -> bool:
        """Whether more should be known soon: gains are not known yet."""
        return self._objectives is not None and self._gains.curve is None

    def _take_in_curve(self, curve: Floats) -> None:
        if np.isfinite(curve).all():
            self._gains.learn_curve(curve)

    def _take_in_gains(self, curve: Floats) -> None:
        """Learn the curve; hold what was promised at the last switch against what has come."""
        self._take_in_curve(curve)
        if math.isnan(self._realised):
            return
        if np.isfinite(curve).all():
            self._gains.learn_realised(self._plan, self._realised, curve)
        if self._promise is not None and not self._promise_is_kept:
            self._gains.keep(self._promise, self._realised)
            self._promise_is_kept = True

    def _cause(self, step: int, link: Link, changes: Sequence[Change], own_s: float) -> str | None:
        """Return what has moved enough for a new look, if anything has."""
        known = self._known
        if _has_moved(link.latency_s, known.link.latency_s) or _has_moved(link.bandwidth_bps, known.link.bandwidth_bps):
            told = [change.what for change in changes]
            by_latency = abs(math.log(max(link.latency_s, 1e-9) / max(known.link.latency_s, 1e-9)))
            by_bandwidth = abs(math.log(link.bandwidth_bps / known.link.bandwidth_bps))
            larger = "latency" if by_latency > by_bandwidth else "bandwidth"
            return larger if not told or larger in told else told[0]
        if self._warm_up.is_on(step) or self._warm_up.is_on(known.step):
            return "warm-up"
        if self._gains.curve is not None and (not known.has_curve or _has_moved(self._gain_now, known.gain)):
            return "gain"
        if own_s > 0 and _has_moved(own_s, known.own_s, 2 * _WORTH_A_LOOK):
            return "pace"
        return None

    @property
    def _gain_now(self) -> float:
        return float(self._gains.predict()[self._index])

    @property
    def _index(self) -> int:
        return self._plans.index(self._plan)

    def _choose(self, step: int, cause: str, link: Link) -> list[float]:
        """Look at all plans; return the number of the one to take, and the figures that speak for it."""
        assert self._objectives is not None
        compress_s, sync_s = self._objectives.at(link)
        gains, here, own_s = self._gains.predict(), self._index, self._known.own_s
        allowed = np.flatnonzero(self._ratios >= self._warm_up.least_ratio(step))
        columns = np.stack([compress_s, sync_s, 1 / gains], axis=1)[allowed]
        on_front = allowed[pareto_front(columns)]
        shown = on_front if here in on_front else np.append(on_front, here)
        plans = [self._plans[index] for index in shown]
        front = Front(plans, compress_s[shown], sync_s[shown], gains[shown], own_s)
        mine = int(np.flatnonzero(shown == here)[0])
        chosen = mine if self._gains.curve is None else self._best(front, len(on_front), mine, here in allowed)
        index = int(shown[chosen])
        has_curve = self._gains.curve is not None
        now = _Known(link=link, step=step, has_curve=has_curve, gain=float(gains[index]), own_s=own_s)
        before, self._known = self._known, now
        self._front = front
        curve = [math.nan] * len(GAIN_RATIOS) if self._gains.curve is None else self._gains.curve.tolist()
        promised = math.nan if self._promise is None else self._promise.gain
        figures = [
            float(index),
            float(step),
            float(CAUSES.index(cause)),
            *(before.link.latency_s, before.link.bandwidth_bps, link.latency_s, link.bandwidth_bps),
            own_s,
            *(front.step_s[chosen], front.step_s[mine], front.gain[chosen], front.gain[mine]),
            *(promised, self._realised, self._gains.exponent),
        ]
        if index != here:
            self._promise, self._promise_is_kept = self._gains.promise(index), False
        assert len(figures) == _NUM_FIGURES
        return [*map(float, figures), *curve]

    def _best(self, front: Front, num_allowed: int, mine: int, may_stay: bool) -> int:
        """Return the plan of the highest score; without much to gain from it, the one in force."""
        scores = np.asarray(self._policy(front), dtype=np.float64)
        if scores.shape != (len(front),) or not np.isfinite(scores).all():
            raise ValueError(f"the policy gave {scores}, but must give a number for each of {len(front)} plans")
        best = int(scores[:num_allowed].argmax())
        return best if not may_stay or scores[best] >= _WORTH_A_SWITCH * scores[mine] else mine

    # What all ranks do.

    def adopt(self, answer: Sequence[float]) -> None:
        """Follow an answer from now on."""
        if answer[0] == _NO_CHOICE:
            return
        figures, curve = answer[:_NUM_FIGURES], answer[_NUM_FIGURES:]
        decision = Decision(
            step=int(figures[1]),
            cause=CAUSES[int(figures[2])],
            before=self._plan,
            plan=self._plans[int(figures[0])],
            link_before=Link(latency_s=figures[3], bandwidth_bps=figures[4]),
            link=Link(latency_s=figures[5], bandwidth_bps=figures[6]),
            own_s=figures[7],
            step_s=figures[8],
            step_s_before=figures[9],
            gain=figures[10],
            gain_before=figures[11],
            promised_gain=figures[12],
            realised_gain=figures[13],
            exponent=figures[14],
            gain_curve=tuple(curve),
            front=self._front,
        )
        if decision.is_switch:
            self._since = decision.step
            self._plan = decision.plan
        self._decisions.append(decision)
        if self._journal is not None:
            self._journal.note(decision)


def _has_moved(now: float, before: float, by: float = _WORTH_A_LOOK) -> bool:
    return abs(now - before) > by * max(before, 1e-9)


def _together(curves: Sequence[GainCurve]) -> list[float]:
    """Return the curve of buckets that each send the same share; NaN without any."""
    energy = sum(curve.energy for curve in curves)
    if not curves or not math.isfinite(energy):
        return [math.nan] * len(GAIN_RATIOS)
    if energy == 0:
        return [1.0] * len(GAIN_RATIOS)
    weights = [curve.energy for curve in curves]
    return [float(gain) for gain in np.average([curve.gains for curve in curves], axis=0, weights=weights)]


def _mean_of_finite(rows: Floats) -> Floats:
    """Return the mean of the rows that are finite; NaN if none is."""
    finite = rows[np.isfinite(rows).all(axis=1)]
    return finite.mean(axis=0) if len(finite) else np.full(rows.shape[1], np.nan)
