"""One quantity, followed through noisy observations."""

from __future__ import annotations

import math

_KEEP = 0.96
"""Forgetting: an observation counts half after 17 more."""
_DOUBT = 0.5
"""How far off a value may be at the start and after a change, relative to itself."""
_OUTLIER = 3.0
"""Deviations of more than so many standard deviations count as if they were that large."""
_UPWARD = 9.0
"""What disturbs a transfer makes it longer, never shorter: deviations upwards count as if they were noisier by this."""
_FIRST_NOISE, _LEAST_NOISE, _MOST_NOISE = 0.05, 0.01, 0.5
_NOISE_MEMORY = 0.05
_LEAST_FACTOR = 0.02
_SURELY_SHORTER = 0.1
"""By so much an observation must be below the value to take its place, where shorter ones are trusted."""
_NUM_FRESH, _FRESH_GAIN = 6, 0.5
"""So many observations after a change count half or more, whatever they are: what was before must not linger."""


class Track:
    """A positive value by recursive least squares with forgetting, on deviations relative to itself.

        gain = P / (P + s²);  value += gain · (observed - value);  P = (1 - gain) P / 0.96

    Here P is the relative variance of the value, and s² that of an observation: larger for outliers, for those above
    the value, and for those of which the value makes up only a part.

    Args:
        first: What is known at the start.
        trusts_shorter: Whether an observation can be far below the value only because the value is wrong: then it
            takes its place.
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
        """Whether it is being learned anew."""
        return self._num_fresh > 0

    def doubt(self) -> None:
        """Take the value to be known badly."""
        self._variance = _DOUBT**2

    def start_over(self) -> None:
        """Take the value to be wrong, and the next observations to be no outliers."""
        self.doubt()
        self._num_fresh = _NUM_FRESH

    def learn(self, observed: float, share: float = 1.0) -> None:
        """Take an observation in, of which the value makes up a share; all teach how much noise is usual."""
        deviation = observed / self.value - 1
        if self._trusts_shorter and deviation < -_SURELY_SHORTER:
            self.value = observed
            self.start_over()
            return
        felt = min(abs(deviation) * share, _OUTLIER * self._noise)
        self._noise = min(max(self._noise + _NOISE_MEMORY * (1.25 * felt - self._noise), _LEAST_NOISE), _MOST_NOISE)
        variance = (self._noise / share) ** 2 * max(1.0, abs(deviation) * share / (_OUTLIER * self._noise))
        variance *= _UPWARD if deviation > 0 else 1.0
        gain = self._variance / (self._variance + variance)
        if self._num_fresh > 0:
            self._num_fresh -= 1
            gain = max(gain, _FRESH_GAIN * share)
        self.value *= max(1 + gain * deviation, _LEAST_FACTOR)
        self._variance = min((1 - gain) * self._variance / _KEEP, _DOUBT**2)
