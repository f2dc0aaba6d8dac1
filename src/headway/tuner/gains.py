"""What every plan would teach: the live gain curve, and what has been learned of how far to trust it.

    gain(plan) = curve(c) · factor(kind) · (c / c0)^s / turns

The curve is that of G as it is now, under the residual that ratios so far have left: c0, which follows the ratio in
force as fast as the residual is sent, by the gain a step. A smaller ratio would let the residual grow, and then the
same share of entries holds less of it: its steady gain is below the curve, and that of a larger one above. How much
is the exponent s, learned from each switch by comparing what was foretold with what came.

The factor is what a kind of exchange really sends of G over what the rank's own top-k would: another rank's indices fit
less well. And where ranks take turns in choosing indices, what a rank would have sent first waits for its turn,
(N + 1) / 2 steps on average, so that its gain counts that much less (docs/tuner.md has the measurements).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headway.exchange import Plan
from headway.kernels import GAIN_RATIOS
from headway.tuner.front import Floats

_FIRST_FACTORS = {"star_topk": 0.5, "var_topk": 0.5, "layerwise_topk": 0.9}
"""Before anything is known, from `benchmarks/learning.py`; others send what the curve says."""
_FIRST_EXPONENT, _MOST_EXPONENT = 0.3, 1.0
_SMOOTHING, _CURVE_SMOOTHING = 0.3, 0.7
_IN_TURNS = ("star_topk", "var_topk")
_LEAST_GAIN = 1e-6
_TELLING_RATIO = 1.5
"""Ratios must differ by so much for a switch to tell of the exponent."""
_LOG_RATIOS = np.log(GAIN_RATIOS)

Curve = Floats
"""Gains at `headway.kernels.GAIN_RATIOS`."""


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What was foretold at a switch, to be held against what comes."""

    plan: Plan
    gain: float
    on_curve: float
    """What the curve alone said."""
    ratio_before: float


class GainModel:
    """Foretells gains, and learns from what is realised.

    Args:
        plans: Those to foretell.
        num_ranks: N.
    """

    def __init__(self, plans: Sequence[Plan], num_ranks: int) -> None:
        self._plans = plans
        self._turns = np.array([(num_ranks + 1) / 2 if plan.exchange in _IN_TURNS else 1.0 for plan in plans])
        self._log_ratios = np.log([_ratio_of(plan) for plan in plans])
        kinds = [_kind_of(plan) for plan in plans]
        self._distinct = list(dict.fromkeys(kinds))
        self._which = np.array([self._distinct.index(kind) for kind in kinds])
        self._index_of = {plan: index for index, plan in enumerate(plans)}
        self._follows_curve = np.array([_follows_curve(plan) for plan in plans])
        self._is_random = np.array([plan.exchange == "randomk" for plan in plans])
        self._factors: dict[str, float] = {}
        self.exponent = _FIRST_EXPONENT
        self.curve: Curve | None = None
        self._residual_ratio = self._curve_ratio = 1.0
        """The ratio that the residual is what it is for, now, and when the curve was taken: c0."""

    def learn_curve(self, gains: Curve) -> None:
        """Take in a gain curve, the mean over ranks."""
        share = 1.0 if self.curve is None else _CURVE_SMOOTHING
        self.curve = gains if self.curve is None else self.curve + share * (gains - self.curve)
        self._curve_ratio = _between(self._curve_ratio, self._residual_ratio, share)

    def forget_residual(self, plan: Plan, num_steps: int) -> None:
        """Let the residual become what the ratio in force makes of it, over some steps."""
        if self.curve is None or num_steps <= 0:
            return
        left = (1 - float(self._sent()[self._index_of[plan]])) ** num_steps
        self._residual_ratio = _between(self._residual_ratio, _ratio_of(plan), 1 - left)

    def learn_realised(self, plan: Plan, realised: float, curve: Curve) -> None:
        """Take in what an exchange has sent of G, the mean over ranks, and the curve of the same steps."""
        if not _follows_curve(plan):
            return
        own = _at(curve, math.log(plan.ratio))
        observed = min(max(realised / max(own, _LEAST_GAIN), 0.05), 1.2)
        kind = _kind_of(plan)
        before = self.factor(kind)
        self._factors[kind] = observed if kind not in self._factors else before + _SMOOTHING * (observed - before)

    def factor(self, kind: str) -> float:
        """Return what a kind of exchange sends over what the curve says."""
        first = _FIRST_FACTORS.get(kind.split()[0], 1.0)
        same = [value for name, value in self._factors.items() if name.split()[0] == kind.split()[0]]
        return self._factors.get(kind, same[0] if same else first)

    def predict(self) -> Floats:
        """Return what each plan teaches a step, in the long run; 1 for all of them as long as no curve is known."""
        if self.curve is None:
            return np.ones(len(self._plans))
        return np.asarray(np.maximum(self._sent() / self._turns, _LEAST_GAIN))

    def _sent(self) -> Floats:
        """Return |sent|² / |G|² of each plan, in the long run."""
        gains = self._uncorrected() * np.exp(self.exponent * (self._log_ratios - math.log(self._curve_ratio)))
        return np.clip(np.where(self._follows_curve, gains, self._fixed), _LEAST_GAIN, 1.0)

    def promise(self, index: int) -> Promise:
        """Return what is foretold of a plan, before it is switched to."""
        return Promise(
            plan=self._plans[index],
            gain=float(self._sent()[index]) if self.curve is not None else 1.0,
            on_curve=1.0 if self.curve is None else _at(self.curve, self._log_ratios[index]),
            ratio_before=self._curve_ratio,
        )

    def keep(self, promise: Promise, realised: float) -> None:
        """Hold a promise against what came, and correct the exponent."""
        distance = math.log(_ratio_of(promise.plan) / promise.ratio_before)
        if not _follows_curve(promise.plan) or abs(distance) < math.log(_TELLING_RATIO):
            return
        expected = promise.on_curve * self.factor(_kind_of(promise.plan))
        observed = math.log(max(realised, _LEAST_GAIN) / max(expected, _LEAST_GAIN)) / distance
        self.exponent += _SMOOTHING * (min(max(observed, 0.0), _MOST_EXPONENT) - self.exponent)

    def _uncorrected(self) -> Floats:
        assert self.curve is not None
        factors = np.array([self.factor(kind) for kind in self._distinct])[self._which]
        return np.asarray(np.interp(self._log_ratios, _LOG_RATIOS, self.curve) * factors)

    def counted(self, plan: Plan, gain: float) -> float:
        """Return what a gain counts, where ranks take turns."""
        return gain / float(self._turns[self._index_of[plan]])

    @property
    def _fixed(self) -> Floats:
        """Of plans that the curve says nothing of: random-k sends its share of the energy, dense and quantized all."""
        return np.where(self._is_random, np.exp(self._log_ratios), 1.0)


def _between(a: float, b: float, share: float) -> float:
    """Return the ratio that lies a share of the way from a to b, on a log scale."""
    return float(math.exp((1 - share) * math.log(a) + share * math.log(b)))


def _at(curve: Curve, log_ratio: float) -> float:
    return float(np.interp(log_ratio, _LOG_RATIOS, curve))


def _follows_curve(plan: Plan) -> bool:
    return plan.sends_some and plan.exchange != "randomk"


def _ratio_of(plan: Plan) -> float:
    return plan.ratio if plan.sends_some else 1.0


def _kind_of(plan: Plan) -> str:
    return f"{plan.exchange} {plan.values}"
