"""Corrects predicted times by the measured ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from headway.exchange import Plan
from headway.tuner.front import Floats

_SMOOTHING = 0.5
_LEAST, _MOST = 0.5, 4.0
_PRIOR_WEIGHT = 0.3
"""As if this many kinds had been measured, exactly as predicted."""
_LEAST_S = 1e-3
"""Shorter times are not worth correcting."""

Kind = tuple[str, str, str, str]
"""Exchange, algorithm, fusion, and the value format where all entries are sent: what plans of any ratio share."""


class TimeModel:
    """Corrects predicted times by measured ones, for each kind of plan.

        t = factor(kind) · predicted

    A kind that has not been tried gets the mean factor of those that have been, with more weight the more have been: an
    error common to all, as where ranks share cores, must not make untried plans look better. With n kinds tried,
    log factor = sum of their logs / (n + 0.3).

    Args:
        plans: The plans to correct.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        kinds = [_kind_of(plan) for plan in plans]
        self._distinct = list(dict.fromkeys(kinds))
        number_of = {kind: number for number, kind in enumerate(self._distinct)}
        self._which = np.array([number_of[kind] for kind in kinds])
        self._logs: dict[Kind, float] = {}

    def learn(self, plan: Plan, predicted_s: float, realised_s: float) -> None:
        """Take in the measured time of a plan; ``predicted_s`` is without correction."""
        if predicted_s < _LEAST_S or not math.isfinite(realised_s):
            return
        observed = math.log(min(max(realised_s / predicted_s, _LEAST), _MOST))
        kind = _kind_of(plan)
        before = self._logs.get(kind)
        self._logs[kind] = observed if before is None else before + _SMOOTHING * (observed - before)

    def doubt(self) -> None:
        """Halve what was learned: the network has changed."""
        self._logs = {kind: value / 2 for kind, value in self._logs.items()}

    def factors(self) -> Floats:
        """Return the factor of each plan."""
        usual = sum(self._logs.values()) / (len(self._logs) + _PRIOR_WEIGHT)
        return np.asarray(np.exp([self._logs.get(kind, usual) for kind in self._distinct])[self._which])


def _kind_of(plan: Plan) -> Kind:
    return (plan.exchange, plan.algorithm, plan.fusion, "" if plan.description.uses_ratio else plan.values)
