"""Every plan there is to choose from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from headway.collectives import ALGORITHMS, NATIVE, Collective
from headway.exchange import EXCHANGES, Plan
from headway.exchange.plan import QUANTIZED_BITS
from headway.kernels import VALUE_FORMATS, ValueFormat

RATIOS_A_DECADE = 10


def candidates(ratio: float, exchanges: Iterable[str] = tuple(EXCHANGES)) -> Iterator[Plan]:
    """Yield every exchange by every algorithm, one exchange a step; indices are broadcast by whatever is fastest.

    >>> len(list(candidates(0.01, ["allgather_topk"])))
    5
    """
    for exchange in exchanges:
        plan = Plan(exchange=exchange, ratio=ratio, fusion="step")
        for algorithm in (NATIVE, *ALGORITHMS[plan.collective]):
            yield Plan(exchange=exchange, ratio=ratio, fusion="step", algorithm=algorithm)


def ratios_between(min_ratio: float, max_ratio: float) -> Sequence[float]:
    """Return ratios evenly spaced on a log scale, ten a decade or a little more, ends included.

    >>> [round(ratio, 4) for ratio in ratios_between(0.05, 0.1)]
    [0.05, 0.0595, 0.0707, 0.0841, 0.1]
    """
    num_steps = int(np.ceil(round(RATIOS_A_DECADE * np.log10(max_ratio / min_ratio), 6)))
    return [float(ratio) for ratio in np.geomspace(min_ratio, max_ratio, num_steps + 1)]


def all_plans(ratios: Sequence[float], exchanges: Iterable[str] = tuple(EXCHANGES)) -> list[Plan]:
    """Return every exchange at every ratio, in every value format, by every algorithm, fused or not.

    The order is always the same, so that ranks can name a plan by its number.

    >>> len(all_plans([0.01], ["dense"]))  # 8 algorithms, 2 value formats, 2 fusions
    32
    """
    return [
        Plan(exchange=name, ratio=ratio, algorithm=algorithm, values=values, bits=bits, fusion=fusion)
        for name in exchanges
        for ratio, values, bits in _forms(name, ratios)
        for algorithm in (NATIVE, *ALGORITHMS[Plan(exchange=name).collective])
        for fusion in ("bucket", "step")
    ]


def _forms(exchange: str, ratios: Sequence[float]) -> Iterator[tuple[float, ValueFormat, int]]:
    """Yield ratio, value format and bits."""
    plan = Plan(exchange=exchange)
    if exchange == "quantized":
        yield from ((plan.ratio, "fp32", bits) for bits in QUANTIZED_BITS)
        return
    sums = plan.collective is Collective.ALL_REDUCE
    formats: list[ValueFormat] = [name for name in VALUE_FORMATS if not (sums and name == "int8")]
    for ratio in ratios if plan.sends_some else [plan.ratio]:
        yield from ((ratio, values, plan.bits) for values in formats)
