"""The model of a network between two ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Link:
    """One way from any rank to any other: t = α + bytes β.

    Args:
        latency_s: α.
        bandwidth_bps: 8/β, bits a second.

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
        """Return how long a message takes."""
        return self.latency_s + 8 * num_bytes / self.bandwidth_bps
