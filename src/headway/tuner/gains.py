"""Predicts the gain of every plan in the long run, from live gain curves and from measured gains.

    gain(plan) = factor(form) · min(curve(c), slope · c) / turns     for the largest entries
    gain(plan) = factor(form) · expected(bits)                       for all of them, as codes

``curve`` is that of the gradient alone, before the residual is added: no ratio can send more than that if nothing is
left over. A small ratio leaves much: the residual grows until what is sent balances what comes in, and then a step
sends about as many entries of similar size as it has room for, so that the steady gain is proportional to the ratio.
The constant of proportion, the ``slope``, is learned from what plans in force really send; a curve taken under one
ratio's residual could not give it. (The minimum is a smooth one.)

The ``factor`` is what a form of exchange really sends of G over what the rank's own top-k would: another rank's indices
fit less well. And where ranks take turns in choosing indices, an entry waits for its rank's turn, (N + 1) / 2 steps on
average, so that its gain counts that much less (docs/tuner.md has the measurements).

What is ``expected`` of codes is 1 - E|error|² / |g|² of the gradient alone, taken along with the curve. It is negative
where a few large entries make the grid too coarse for all others; such a plan has the least gain there is, and so has
one of which nothing is known yet. What has been measured of one number of bits says nothing of another.

Gradients change, and only the plan in force is measured: the factors of all others return slowly to their first values,
so that a form which has failed once is tried again some day.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from headway.exchange import CodeGain, GainRule, Plan
from headway.exchange.plan import Form
from headway.kernels import GAIN_RATIOS
from headway.kernels.quantizers import BITS
from headway.tuner.front import Floats

_FIRST_SLOPE, _LEAST_SLOPE, _MOST_SLOPE = 15.0, 1.0, 1000.0
_SMOOTHING, _CURVE_SMOOTHING = 0.3, 0.7
_SHARPNESS = 4
"""The sharpness of the smooth minimum."""
_LIMITED = 0.9
"""A gain below this share of the curve is limited by the residual, and shows the slope."""
_LEAST_GAIN = 1e-6
_LEAST_FACTOR, _MOST_FACTOR = 0.05, 1.2
_RECOVERY = 0.01
"""How far the factor of a form that is not in force returns to its first value, in one report."""
_FIRST_OF_FORMAT = {"int4": 0.98, "sign": 0.9}
"""What these formats preserve of the values at first sight; between heavy tails (signs at 5%: 0.77) and light ones."""
_LOG_RATIOS = np.log(GAIN_RATIOS)

Curve = Floats
"""Gains at `headway.kernels.GAIN_RATIOS`."""


class GainModel:
    """Predicts gains, and learns from measured ones.

    Args:
        plans: The plans to predict.
        num_ranks: The number of ranks, N.
    """

    def __init__(self, plans: Sequence[Plan], num_ranks: int) -> None:
        self._forms = list(dict.fromkeys(plan.form for plan in plans))
        place_of = {form: place for place, form in enumerate(self._forms)}
        self._which = np.array([place_of[plan.form] for plan in plans])
        self._ratios = np.array([plan.sent_ratio for plan in plans])
        self._follows_curve = np.array([_follows_curve(plan) for plan in plans])
        self._bits, self._which_bits = np.unique([_bits_of(plan) for plan in plans], return_inverse=True)
        self._code_gains: dict[int, float] = {}
        self._num_turns = (num_ranks + 1) / 2
        self._turns = np.array([self._turns_of(plan) for plan in plans])
        self._factors: dict[Form, float] = {}
        self._first_factors = {plan.exchange: plan.description.gain_factor for plan in plans}
        self.slope = _FIRST_SLOPE
        self.curve: Curve | None = None

    def learn_curve(self, gains: Curve, codes: Sequence[CodeGain] = ()) -> None:
        """Take in the gain curve of gradients, and what is expected of codes; the mean over ranks."""
        self.curve = gains if self.curve is None else self.curve + _CURVE_SMOOTHING * (gains - self.curve)
        for bits, gain in codes:
            before = self._code_gains.get(bits, gain)
            self._code_gains[bits] = before + _CURVE_SMOOTHING * (gain - before)

    def learn_realised(self, plan: Plan, realised: float, curve: Curve) -> None:
        """Take in the measured gain of a plan, the mean over ranks, and the curve of G in the same steps."""
        self._age_factors(plan.form)
        rule, expected = plan.description.gain_rule, self._expected(_bits_of(plan))
        if rule is GainRule.ALL and expected > _LEAST_GAIN:  # otherwise its gain is the least already
            self._learn_factor(plan.form, realised, expected, least=0.0)
        if rule is not GainRule.CURVE:
            return
        own = max(_at(curve, plan.ratio), _LEAST_GAIN)
        self._learn_factor(plan.form, realised, own, least=_LEAST_FACTOR)
        if self.curve is not None and own < _LIMITED * _at(self.curve, plan.ratio):
            step = _SMOOTHING * math.log(own / plan.ratio / self.slope)
            self.slope = min(max(self.slope * math.exp(step), _LEAST_SLOPE), _MOST_SLOPE)

    def _learn_factor(self, form: Form, realised: float, expected: float, least: float) -> None:
        observed = min(max(realised / expected, least), _MOST_FACTOR)
        before = self._factors.get(form, observed)
        self._factors[form] = before + _SMOOTHING * (observed - before)

    def _age_factors(self, in_force: Form) -> None:
        for form, value in self._factors.items():
            if form != in_force:
                self._factors[form] = value + _RECOVERY * (self._first_factor(form) - value)

    def _first_factor(self, form: Form) -> float:
        exchange, values, _ = form
        return self._first_factors.get(exchange, 1.0) * _FIRST_OF_FORMAT.get(values, 1.0)

    def factor(self, form: Form) -> float:
        """Return what a form of exchange sends over what is expected.

        Untried forms take after one that differs in the format of its values only, as far as the formats are alike.
        """
        exchange, _, bits = form
        related = [known for known in self._factors if (known[0], known[2]) == (exchange, bits)]
        if form in self._factors or not related:
            return self._factors.get(form, self._first_factor(form))
        return self._factors[related[0]] * self._first_factor(form) / self._first_factor(related[0])

    def predict(self) -> Floats:
        """Return the steady gain of each plan; 1 for all of them as long as no curve is known.

        Where the curve says nothing, an exchange sends its share of the energy: the ratio, or everything, less what is
        expected to get lost in codes.
        """
        if self.curve is None:
            return np.ones(len(self._ratios))
        factors = np.array([self.factor(form) for form in self._forms])[self._which]
        expected = self._ratios * np.array([self._expected(bits) for bits in self._bits.tolist()])[self._which_bits]
        sent = factors * np.where(self._follows_curve, self._steady(self.curve), expected)
        return np.asarray(np.clip(sent, _LEAST_GAIN, 1.0) / self._turns)

    def counted(self, plan: Plan, gain: float) -> float:
        """Return what a measured gain counts, less where ranks take turns."""
        return gain / self._turns_of(plan)

    def _expected(self, bits: int) -> float:
        """Return the gain of sending everything, with codes of so many bits, or 0 for values.

        Nothing can be expected of bits that no kernel knows: an exchange of that kind counts as what it realises.
        """
        return self._code_gains.get(bits, _LEAST_GAIN if bits in BITS else 1.0)

    def _turns_of(self, plan: Plan) -> float:
        return self._num_turns if plan.description.takes_turns else 1.0

    def _steady(self, curve: Curve) -> Floats:
        """Return the smooth minimum of curve(c) and slope · c."""
        at_once = np.interp(np.log(self._ratios), _LOG_RATIOS, curve)
        return np.asarray((at_once**-_SHARPNESS + (self.slope * self._ratios) ** -_SHARPNESS) ** (-1 / _SHARPNESS))


def _at(curve: Curve, ratio: float) -> float:
    return float(np.interp(math.log(ratio), _LOG_RATIOS, curve))


def _bits_of(plan: Plan) -> int:
    return plan.bits if plan.description.bits else 0


def _follows_curve(plan: Plan) -> bool:
    return plan.description.gain_rule is GainRule.CURVE
