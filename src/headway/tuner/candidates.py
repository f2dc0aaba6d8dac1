"""The plans to choose from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headway.collectives import ALGORITHMS, NATIVE
from headway.exchange import EXCHANGES, Plan
from headway.kernels import ValueFormat

RATIOS_PER_DECADE = 10


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
    """The least ratio allowed, falling evenly on a log scale from ``max_ratio`` to ``min_ratio``.

    Early gradients change much from step to step: what is sent late is sent too late.

    >>> warm_up = WarmUp(min_ratio=0.001, max_ratio=0.1, num_steps=20)
    >>> [round(warm_up.least_ratio(step), 4) for step in (0, 10, 20, 30)]
    [0.1, 0.01, 0.001, 0.001]
    """

    min_ratio: float
    max_ratio: float
    num_steps: int

    def is_on(self, step: int) -> bool:
        """Return whether the warm-up still restricts ratios."""
        return step < self.num_steps

    def least_ratio(self, step: int) -> float:
        """Return the least ratio allowed at a step."""
        share = min(step / self.num_steps, 1.0) if self.num_steps else 1.0
        return float(self.max_ratio * (self.min_ratio / self.max_ratio) ** share * (1 - 1e-9))
