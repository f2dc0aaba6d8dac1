"""Tracks one quantity through noisy observations."""

from __future__ import annotations

import math

_KEEP = 0.96
"""Forgetting: the weight of an observation halves with every 17 that follow."""
_DOUBT = 0.5
"""Relative error of a value at the start and after a change."""
_OUTLIER = 3.0
"""Deviations are limited to this many standard deviations."""
_UPWARD = 9.0
"""Factor on the variance of upward deviations: disturbances make transfers longer, never shorter."""
_FIRST_NOISE, _LEAST_NOISE, _MOST_NOISE = 0.05, 0.01, 0.5
_NOISE_MEMORY = 0.05
_LEAST_FACTOR = 0.02
_SURELY_SHORTER = 0.1
"""How far below the value an observation must be to replace it, where shorter ones are trusted."""
_NUM_FRESH, _FRESH_GAIN = 6, 0.5
"""After a change this many observations have at least this gain, so that the old value does not linger."""


class Track:
    """Tracks a positive value by recursive least squares with forgetting, on relative deviations.

        gain = P / (P + s²);  value += gain · (observed - value);  P = (1 - gain) P / 0.96

    Here P is the relative variance of the value, and s² that of an observation: larger for outliers, for observations
    above the value, and for those of which the value makes up only a part.

    Args:
        first: The initial value.
        trusts_shorter: Whether an observation far below the value proves the value wrong, and replaces it.
    """

    def __init__(self, first: float, *, trusts_shorter: bool = False) -> None:
        self.value = first
        self._trusts_shorter = trusts_shorter
        self._variance = _DOUBT**2
        self._noise = _FIRST_NOISE
        self._num_fresh = 0

    @property
    def error(self) -> float:
        """The relative standard error."""
        return math.sqrt(self._variance)

    @property
    def is_fresh(self) -> bool:
        """Whether it is being learned again after a change."""
        return self._num_fresh > 0

    def doubt(self) -> None:
        """Reset the error of the value."""
        self._variance = _DOUBT**2

    def start_over(self) -> None:
        """Assume that the value is wrong, and that the next observations are not outliers."""
        self.doubt()
        self._num_fresh = _NUM_FRESH

    def learn(self, observed: float, share: float = 1.0) -> None:
        """Update the value, which makes up a share of the observation, and the level of noise."""
        deviation = observed / self.value - 1
        if self._trusts_shorter and deviation < -_SURELY_SHORTER:
            self.value = observed
            self.start_over()
            return
        limited = min(abs(deviation) * share, _OUTLIER * self._noise)
        self._noise = min(max(self._noise + _NOISE_MEMORY * (1.25 * limited - self._noise), _LEAST_NOISE), _MOST_NOISE)
        variance = (self._noise / share) ** 2 * max(1.0, abs(deviation) * share / (_OUTLIER * self._noise))
        variance *= _UPWARD if deviation > 0 else 1.0
        gain = self._variance / (self._variance + variance)
        if self._num_fresh > 0:
            self._num_fresh -= 1
            gain = max(gain, _FRESH_GAIN * share)
        self.value *= max(1 + gain * deviation, _LEAST_FACTOR)
        self._variance = min((1 - gain) * self._variance / _KEEP, _DOUBT**2)
