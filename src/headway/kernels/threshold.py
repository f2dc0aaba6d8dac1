"""The threshold remembered from the last step, which allows a selection in one pass."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headway.kernels._lanes import INF_KEY
from headway.kernels.select import SMALLEST_KEY

_KEYS_PER_OCTAVE = 1 << 23
_MIN_MARGIN = 1 << 15
"""In units of keys: between 0.2% and 0.4% of the threshold."""

_MAX_MARGIN = 1 << 22
_DEVIATIONS = 3.0
_NEWEST = 0.4
"""The weight of the newest step in the averages."""


@dataclass
class Threshold:
    """Predicts the key of the k-th largest entry from those of the last steps.

    The guess follows the trend from step to step, minus three times the mean deviation from it, so that it is
    rarely too high (a miss costs two more passes) and rarely much too low (a surplus candidate costs nanoseconds).
    """

    key: int = 0
    trend: float = 0.0
    deviation: float = 0.0
    num_picked: int = 0
    """The k of the last step; 0 before the first step."""

    def guess(self, k: int) -> np.uint32 | None:
        """Return a key that the k-th largest entry probably reaches, or None without a step of similar k."""
        if not (self.num_picked and 0.95 * k <= self.num_picked <= 1.05 * k):
            return None
        margin = min(max(_DEVIATIONS * self.deviation, _MIN_MARGIN), _MAX_MARGIN)
        return np.uint32(min(max(self.key + self.trend - margin, int(SMALLEST_KEY)), int(INF_KEY)))

    def rescale(self, factor: float) -> None:
        """Expect all entries to be multiplied by a factor above 0."""
        if self.num_picked:
            self.key = max(self.key + round(math.log2(factor) * _KEYS_PER_OCTAVE), int(SMALLEST_KEY))

    def observe(self, key: int, k: int) -> None:
        """Record the exact key of the k-th largest entry."""
        if key >= INF_KEY:
            return  # a step that overflowed says nothing about the next
        change = key - self.key
        if abs(change) > _MAX_MARGIN:  # a jump, not a trend: start over
            self.trend = self.deviation = 0.0
        else:
            self.deviation += _NEWEST * (abs(change - self.trend) - self.deviation)
            self.trend += _NEWEST * (change - self.trend)
        self.key, self.num_picked = key, k
