"""Every plan there is to choose from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headway.collectives import ALGORITHMS, NATIVE
from headway.exchange import EXCHANGES, Plan


def candidates(ratio: float, exchanges: Iterable[str] = tuple(EXCHANGES)) -> Iterator[Plan]:
    """Yield every exchange by every algorithm, one exchange a step; indices are broadcast by whatever is fastest.

    >>> len(list(candidates(0.01, ["allgather_topk"])))
    5
    """
    for exchange in exchanges:
        plan = Plan(exchange=exchange, ratio=ratio, fusion="step")
        for algorithm in (NATIVE, *ALGORITHMS[plan.collective]):
            yield Plan(exchange=exchange, ratio=ratio, fusion="step", algorithm=algorithm)
