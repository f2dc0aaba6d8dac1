"""The model of a network between two ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass

WORTH_FOLLOWING = 0.1
"""The smallest relative change of latency or bandwidth that decisions follow."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """The way from any rank to any other: t = α + bytes β.

    Args:
        latency_s: α, the one-way latency.
        bandwidth_bps: 8/β, in bits per second.

    >>> Link(latency_s=0.02, bandwidth_bps=1e9).seconds(1_000_000)
    0.028
    """

    latency_s: float
    bandwidth_bps: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0):
            raise ValueError(f"latency_s is {self.latency_s}, but must be a number of seconds, 0 or more")
        if not self.bandwidth_bps > 0:
            raise ValueError(f"bandwidth_bps is {self.bandwidth_bps}, but must be above 0")

    def seconds(self, num_bytes: float) -> float:
        """Return the time of a message of this size."""
        return self.latency_s + 8 * num_bytes / self.bandwidth_bps

    def has_moved(self, before: Link) -> bool:
        """Return whether latency or bandwidth differs from ``before`` by more than 10% of it.

        >>> Link(latency_s=0.02, bandwidth_bps=8e8).has_moved(Link(latency_s=0.02, bandwidth_bps=1e9))
        True
        """
        latency = self.latency_s / max(before.latency_s, 1e-9)
        bandwidth = self.bandwidth_bps / before.bandwidth_bps
        return abs(latency - 1) > WORTH_FOLLOWING or abs(bandwidth - 1) > WORTH_FOLLOWING
