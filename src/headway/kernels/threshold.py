"""The threshold remembered from the last step: what makes a selection one pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headway.kernels._lanes import INF_KEY
from headway.kernels.candidates import SMALLEST_KEY

_MIN_MARGIN = 1 << 15
"""In units of keys, of which there are 2^23 an octave: between 0.2% and 0.4% of the threshold."""

_MAX_MARGIN = 1 << 22
_DEVIATIONS = 3.0
_NEWEST = 0.4
"""The weight of the newest step in the averages."""


@dataclass
class Threshold:
    """Guesses the key of the k-th largest entry from those of the last steps.

    The guess follows the trend from step to step, lowered by three times the usual deviation from it, so that it is
    rarely too high (a miss costs two more passes) and rarely much too low (a surplus candidate costs nanoseconds).
    """

    key: int = 0
    trend: float = 0.0
    deviation: float = 0.0
    num_picked: int = 0
    """The k it was seen with; 0 before the first step."""

    def guess(self, k: int) -> np.uint32 | None:
        """Return a key that the k-th largest entry probably reaches, or None without experience of a like k."""
        if not (self.num_picked and 0.95 * k <= self.num_picked <= 1.05 * k):
            return None
        margin = min(max(_DEVIATIONS * self.deviation, _MIN_MARGIN), _MAX_MARGIN)
        return np.uint32(min(max(self.key + self.trend - margin, int(SMALLEST_KEY)), int(INF_KEY)))

    def forget(self) -> None:
        """Make the next selection start without a guess."""
        self.num_picked = 0

    def observe(self, key: int, k: int) -> None:
        """Learn the exact key of the k-th largest entry."""
        if key >= INF_KEY:
            return  # a step that overflowed says nothing of the next
        change = key - self.key
        if abs(change) > _MAX_MARGIN:  # a jump, not a trend: start anew
            self.trend = self.deviation = 0.0
        else:
            self.deviation += _NEWEST * (abs(change - self.trend) - self.deviation)
            self.trend += _NEWEST * (change - self.trend)
        self.key, self.num_picked = key, k
