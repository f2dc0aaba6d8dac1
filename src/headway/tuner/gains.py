"""What every plan would teach in the long run, from live gain curves and from what has come of plans so far.

    gain(plan) = factor(kind) · min(curve(c), slope · c) / turns

``curve`` is that of the gradient alone, before the residual is added: no ratio can send more of what it leaves nothing
of. A small ratio leaves much: the residual grows until what is sent of it balances what comes, and then a step sends
about as many entries of like size as there is room for, so that the steady gain is in proportion to the ratio. How much
that is, the ``slope``, is learned from what plans in force really send; a curve that was taken under one ratio's
residual could not tell. (The minimum is a smooth one.)

The ``factor`` is what a kind of exchange really sends of G over what the rank's own top-k would: another rank's indices
fit less well. And where ranks take turns in choosing indices, what a rank would have sent first waits for its turn,
(N + 1) / 2 steps on average, so that its gain counts that much less (docs/tuner.md has the measurements).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from headway.exchange import Plan
from headway.kernels import GAIN_RATIOS
from headway.tuner.front import Floats

_FIRST_FACTORS = {"star_topk": 0.5, "var_topk": 0.5, "layerwise_topk": 0.9}
"""Before anything is known, from `benchmarks/learning.py`; others send what the curve says."""
_FIRST_SLOPE, _LEAST_SLOPE, _MOST_SLOPE = 15.0, 1.0, 1000.0
_SMOOTHING, _CURVE_SMOOTHING = 0.3, 0.7
_SHARPNESS = 4
"""Of the smooth minimum."""
_LIMITED = 0.9
"""A gain below so much of the curve is limited by the residual, and tells of the slope."""
_IN_TURNS = ("star_topk", "var_topk")
_LEAST_GAIN = 1e-6
_LOG_RATIOS = np.log(GAIN_RATIOS)

Curve = Floats
"""Gains at `headway.kernels.GAIN_RATIOS`."""


class GainModel:
    """Foretells gains, and learns from what is realised.

    Args:
        plans: Those to foretell.
        num_ranks: N.
    """

    def __init__(self, plans: Sequence[Plan], num_ranks: int) -> None:
        kinds = [_kind_of(plan) for plan in plans]
        self._distinct = list(dict.fromkeys(kinds))
        self._which = np.array([self._distinct.index(kind) for kind in kinds])
        self._ratios = np.array([plan.ratio if plan.sends_some else 1.0 for plan in plans])
        self._follows_curve = np.array([_follows_curve(plan) for plan in plans])
        self._is_random = np.array([plan.exchange == "randomk" for plan in plans])
        self._num_turns = (num_ranks + 1) / 2
        self._turns = np.array([self._num_turns if plan.exchange in _IN_TURNS else 1.0 for plan in plans])
        self._factors: dict[str, float] = {}
        self.slope = _FIRST_SLOPE
        self.curve: Curve | None = None

    def learn_curve(self, gains: Curve) -> None:
        """Take in the gain curve of gradients, the mean over ranks."""
        self.curve = gains if self.curve is None else self.curve + _CURVE_SMOOTHING * (gains - self.curve)

    def learn_realised(self, plan: Plan, realised: float, curve: Curve) -> None:
        """Take in what a plan has sent of G, the mean over ranks, and the curve of G in the same steps."""
        if not _follows_curve(plan):
            return
        own = max(_at(curve, plan.ratio), _LEAST_GAIN)
        kind, observed = _kind_of(plan), min(max(realised / own, 0.05), 1.2)
        before = self._factors.get(kind, observed)
        self._factors[kind] = before + _SMOOTHING * (observed - before)
        if self.curve is not None and own < _LIMITED * _at(self.curve, plan.ratio):
            step = _SMOOTHING * math.log(own / plan.ratio / self.slope)
            self.slope = min(max(self.slope * math.exp(step), _LEAST_SLOPE), _MOST_SLOPE)

    def factor(self, kind: str) -> float:
        """Return what a kind of exchange sends over what the curve says."""
        name = kind.split()[0]
        same = [value for known, value in self._factors.items() if known.split()[0] == name]
        return self._factors.get(kind, same[0] if same else _FIRST_FACTORS.get(name, 1.0))

    def predict(self) -> Floats:
        """Return what each plan teaches a step, in the long run; 1 for all of them as long as no curve is known."""
        if self.curve is None:
            return np.ones(len(self._ratios))
        factors = np.array([self.factor(kind) for kind in self._distinct])[self._which]
        sent = np.where(self._follows_curve, factors * self._steady(self.curve), self._fixed)
        return np.asarray(np.clip(sent, _LEAST_GAIN, 1.0) / self._turns)

    def counted(self, plan: Plan, gain: float) -> float:
        """Return what a gain counts, where ranks take turns."""
        return gain / (self._num_turns if plan.exchange in _IN_TURNS else 1.0)

    def _steady(self, curve: Curve) -> Floats:
        """Return the smooth minimum of curve(c) and slope · c."""
        at_once = np.interp(np.log(self._ratios), _LOG_RATIOS, curve)
        return np.asarray((at_once**-_SHARPNESS + (self.slope * self._ratios) ** -_SHARPNESS) ** (-1 / _SHARPNESS))

    @property
    def _fixed(self) -> Floats:
        """Of plans that the curve says nothing of: random-k sends its share of the energy, dense and quantized all."""
        return np.where(self._is_random, self._ratios, 1.0)


def _at(curve: Curve, ratio: float) -> float:
    return float(np.interp(math.log(ratio), _LOG_RATIOS, curve))


def _follows_curve(plan: Plan) -> bool:
    return plan.sends_some and plan.exchange != "randomk"


def _kind_of(plan: Plan) -> str:
    return f"{plan.exchange} {plan.values}"
