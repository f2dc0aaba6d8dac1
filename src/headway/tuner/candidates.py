"""The plans to choose from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.collectives import ALGORITHMS, NATIVE
from headway.exchange import EXCHANGES, Plan
from headway.kernels import ValueFormat
from headway.tuner.front import Floats

Bools = NDArray[np.bool_]
RATIOS_PER_DECADE = 10
_ENOUGH_GAIN = 0.5
"""Entries that wait two steps are never late."""


def plans_at(ratio: float, exchanges: Iterable[str] | None = None) -> Iterator[Plan]:
    """Yield every exchange by every algorithm, fused into one exchange a step; broadcasts are "auto".

    >>> len(list(plans_at(0.01, ["allgather_topk"])))
    5
    """
    for exchange in EXCHANGES if exchanges is None else exchanges:
        plan = Plan(exchange=exchange, ratio=ratio, fusion="step")
        for algorithm in (NATIVE, *ALGORITHMS[plan.collective]):
            yield Plan(exchange=exchange, ratio=ratio, fusion="step", algorithm=algorithm)


def ratios_between(min_ratio: float, max_ratio: float) -> Sequence[float]:
    """Return ratios evenly spaced on a log scale, ten a decade or a little more, ends included.

    >>> [round(ratio, 4) for ratio in ratios_between(0.05, 0.1)]
    [0.05, 0.0595, 0.0707, 0.0841, 0.1]
    """
    num_steps = int(np.ceil(round(RATIOS_PER_DECADE * np.log10(max_ratio / min_ratio), 6)))
    return [float(ratio) for ratio in np.geomspace(min_ratio, max_ratio, num_steps + 1)]


def all_plans(ratios: Sequence[float], exchanges: Iterable[str] | None = None) -> list[Plan]:
    """Return every exchange at every ratio, in every format to choose from, by every algorithm, fused or not.

    The order is always the same, so that ranks can name a plan by its number.

    >>> len(all_plans([0.01], ["dense"]))  # 8 algorithms, 2 value formats, 2 fusions
    32
    """
    return [
        Plan(exchange=name, ratio=ratio, algorithm=algorithm, values=values, bits=bits, fusion=fusion)
        for name in (EXCHANGES if exchanges is None else exchanges)
        for ratio, values, bits in _forms(name, ratios)
        for algorithm in (NATIVE, *ALGORITHMS[Plan(exchange=name).collective])
        for fusion in ("bucket", "step")
    ]


def _forms(exchange: str, ratios: Sequence[float]) -> Iterator[tuple[float, ValueFormat, int]]:
    """Yield ratio, value format and bits."""
    default, description = Plan(exchange=exchange), EXCHANGES[exchange].description
    for ratio in ratios if description.uses_ratio else [default.ratio]:
        for bits in description.bits or [default.bits]:
            for values in description.formats_to_choose:
                yield ratio, values, bits


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """Early in training, allows only plans with enough gain.

        gain >= min(0.5, strength / (step + 1)),   or ratio >= max_ratio

    An entry waits about 1/gain steps in the residual. Early gradients change much from step to step: what waits for
    long, compared with the steps there have been, comes too late. Two steps are never too long, and the largest ratio
    is always allowed. How small a ratio may be thus depends on the gradient: a heavy-tailed one allows small ratios
    early. Since ``strength / (step + 1)`` falls below any gain, the warm-up ends by itself.

    Args:
        max_ratio: Ratios from here on are always allowed.
        strength: How many times as long as its entries wait training must have lasted; 0 for no warm-up.

    >>> warm_up = WarmUp(max_ratio=0.1, strength=2)
    >>> [round(warm_up.least_gain(step), 3) for step in (0, 9, 99)]
    [0.5, 0.2, 0.02]
    """

    max_ratio: float
    strength: float

    def least_gain(self, step: int) -> float:
        """Return the least gain that is allowed at a step, for ratios below the largest."""
        return min(_ENOUGH_GAIN, self.strength / (step + 1))

    def allows(self, step: int, ratios: Floats, gains: Floats) -> Bools:
        """Return which plans are allowed at a step, given their ratios and predicted gains."""
        return np.asarray((gains >= self.least_gain(step)) | (ratios >= self.max_ratio * (1 - 1e-9)))
