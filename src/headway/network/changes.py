"""Has it changed? A cumulative sum of deviations tells a lasting move from noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

_SMALLEST = 0.10
"""The least relative move that must be noticed."""
_DRIFT = _SMALLEST / 2
"""Deviations below this are noise: half of what must be noticed is best for noticing it."""
_LEAST_ALARM = 0.10
_CLIP = 0.15
"""No single deviation counts for more."""
_LEAST_WITNESSES = 3
"""So many deviations must speak for a change: one or two may be a straggler, or a pause of the garbage collector."""
_NUM_BETWEEN_FALSE_ALARMS = 3_000
"""To aim for, each way."""
_MEMORY = 0.05
_FIRST_NOISE, _LEAST_NOISE, _MOST_NOISE = 0.03, 0.005, 0.2


class ChangeDetector:
    """Watches relative deviations from what is expected, by a two-sided CUSUM.

        sum = max(0, sum + d - 5%), and the same for -d;  an alarm when a sum reaches h, and three deviations bear it

    h is 10%, or more where deviations are noisy: with a standard deviation of s, about
    s²/10% · ln(3,000 · 0.5% / s²) lets one false alarm through in 3,000 observations.

    >>> detector = ChangeDetector()
    >>> [detector.observe(0.12) for _ in range(3)]
    [False, False, True]
    """

    def __init__(self) -> None:
        self._sides = {1: _Side(), -1: _Side()}
        self._noise = _FIRST_NOISE

    @property
    def num_suspicious(self) -> int:
        """How many observations the present suspicion rests on."""
        return max(side.num_observations for side in self._sides.values())

    @property
    def is_alarming(self) -> bool:
        """Whether a change is likely, but not yet certain."""
        return max(side.sum for side in self._sides.values()) >= _LEAST_ALARM

    def observe(self, deviation: float) -> bool:
        """Take in (measured - expected) / expected; return whether it has changed."""
        clipped = max(-_CLIP, min(_CLIP, deviation))
        for sign, side in self._sides.items():
            side.add(sign * clipped)
        limit = self._limit()
        if any(side.sum >= limit and side.num_witnesses >= _LEAST_WITNESSES for side in self._sides.values()):
            return True
        if self.num_suspicious < _LEAST_WITNESSES:  # a move under way must not pass for noise
            self._noise += _MEMORY * (1.25 * abs(clipped) - self._noise)
        return False

    def restart(self) -> None:
        """Forget suspicions."""
        self._sides = {1: _Side(), -1: _Side()}

    def _limit(self) -> float:
        variance = min(max(self._noise, _LEAST_NOISE), _MOST_NOISE) ** 2
        needed = variance / (2 * _DRIFT) * math.log(max(1.0, _NUM_BETWEEN_FALSE_ALARMS * 2 * _DRIFT**2 / variance))
        return max(_LEAST_ALARM, needed)


@dataclass
class _Side:
    """A suspicion that it has risen, or that it has fallen."""

    sum: float = 0.0
    num_observations: int = 0
    num_witnesses: int = 0

    def add(self, deviation: float) -> None:
        self.sum += deviation - _DRIFT
        self.num_observations += 1
        self.num_witnesses += deviation > _DRIFT
        if self.sum <= 0:
            self.sum, self.num_observations, self.num_witnesses = 0.0, 0, 0
