"""One exchange a bucket, or one a step?"""

from __future__ import annotations

from collections.abc import Sequence


def exposed_s(arrivals_s: Sequence[float], costs_s: Sequence[float]) -> float:
    """Return how much longer a step gets when buckets are exchanged one after the other as they arrive.

    Exchanges overlap with backward; what counts is the time from the arrival of the last bucket to the end.

    >>> exposed_s([0.0, 1.0], [0.5, 0.5])
    0.5
    >>> exposed_s([0.0, 1.0], [2.0, 2.0])
    3.0
    """
    end = 0.0
    for arrival, cost in zip(arrivals_s, costs_s, strict=True):
        end = max(end, arrival) + cost
    return end - arrivals_s[-1]


def cheaper_fusion(arrivals_s: Sequence[float], costs_s: Sequence[float], fused_s: float) -> str:
    """Return "step" where one exchange after the last bucket is over sooner, "bucket" otherwise.

    >>> cheaper_fusion([0.0, 0.01], [0.1, 0.1], fused_s=0.11)
    'step'
    """
    return "step" if fused_s < exposed_s(arrivals_s, costs_s) else "bucket"
