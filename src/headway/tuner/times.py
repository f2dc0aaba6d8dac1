"""How far foretold times are off: what a plan really made steps longer by, over what was foretold."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from headway.exchange import Plan
from headway.tuner.front import Floats

_SMOOTHING = 0.5
_LEAST, _MOST = 0.5, 4.0
_DOUBTS = 0.3
"""As if so many kinds were not off at all."""
_LEAST_S = 1e-3
"""What is shorter is not worth correcting."""

Kind = tuple[str, str, str, str]
"""Exchange, algorithm, fusion, and of dense ones the value format: what plans of any ratio have in common."""


class TimeModel:
    """Corrects foretold times by what came, for each kind of plan.

        t = factor(kind) · foretold

    A kind that has not been tried is taken to be off as those that have been, on average, and the more surely the more
    have been: what all are off by alike, as where ranks share cores, must not make whatever is untried look better.
    With n tried, log factor = sum of their logs / (n + 0.3).

    Args:
        plans: Those to correct.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        kinds = [_kind_of(plan) for plan in plans]
        self._distinct = list(dict.fromkeys(kinds))
        number_of = {kind: number for number, kind in enumerate(self._distinct)}
        self._which = np.array([number_of[kind] for kind in kinds])
        self._logs: dict[Kind, float] = {}

    def learn(self, plan: Plan, foretold_s: float, realised_s: float) -> None:
        """Take in what a plan took; ``foretold_s`` is without correction."""
        if foretold_s < _LEAST_S or not math.isfinite(realised_s):
            return
        observed = math.log(min(max(realised_s / foretold_s, _LEAST), _MOST))
        kind = _kind_of(plan)
        before = self._logs.get(kind)
        self._logs[kind] = observed if before is None else before + _SMOOTHING * (observed - before)

    def doubt(self) -> None:
        """Believe half of what was learned: the network is another one now."""
        self._logs = {kind: value / 2 for kind, value in self._logs.items()}

    def factors(self) -> Floats:
        """Return the factor of each plan."""
        usual = sum(self._logs.values()) / (len(self._logs) + _DOUBTS)
        return np.asarray(np.exp([self._logs.get(kind, usual) for kind in self._distinct])[self._which])


def _kind_of(plan: Plan) -> Kind:
    return (plan.exchange, plan.algorithm, plan.fusion, plan.values if plan.exchange == "dense" else "")
