"""Detects lasting changes in noisy observations, by a cumulative sum of deviations."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_SMALLEST = 0.10
"""The smallest relative move that must be detected."""
_DRIFT = _SMALLEST / 2
"""Deviations below this count as noise: half the move to detect is the best choice for detecting it."""
_LEAST_ALARM = 0.10
_CLIP = 0.15
"""No single deviation counts for more."""
_MIN_SUPPORT = 3
"""Number of deviations that must support a change: one or two may be a straggler or a garbage-collection pause."""
_NUM_BETWEEN_FALSE_ALARMS = 3_000
"""Target for each direction."""
_MEMORY = 0.05
_FIRST_NOISE, _LEAST_NOISE, _MOST_NOISE = 0.03, 0.005, 0.2

_NUM_LEARNING = 4
"""Number of observations after a start from which only the value is learned."""
_NUM_CENTRING = 6
"""Number of further observations from which the usual deviation is learned."""
_DEAD_ZONE = 0.3
"""While learning, only the part of a deviation beyond this counts."""
_LEAST_REPLAYED, _MOST_REPLAYED = 3, 8
"""After a change the latest observations are used again: as many as supported the change, within these limits."""
_SLOWLY = 0.02
"""How fast the usual deviation follows in the long run."""


class ChangeDetector:
    """Watches the logarithms of measured / expected by a two-sided CUSUM.

        sum = max(0, sum + d - 5%), and the same for -d;  an alarm when a sum reaches h, supported by three deviations

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
        """How many observations the current suspicion is based on."""
        return max(side.num_observations for side in self._sides.values())

    @property
    def is_alarming(self) -> bool:
        """Whether a change is likely, but not yet certain."""
        return max(side.sum for side in self._sides.values()) >= max(_LEAST_ALARM, self._limit() / 2)

    def observe(self, deviation: float) -> bool:
        """Add the logarithm of measured / expected; return whether there has been a change."""
        clipped = max(-_CLIP, min(_CLIP, deviation))
        for sign, side in self._sides.items():
            side.add(sign * clipped)
        limit = self._limit()
        return any(side.sum >= limit and side.num_supporting >= _MIN_SUPPORT for side in self._sides.values())

    def learn_noise(self, deviation: float) -> None:
        """Learn from the size of a deviation while nothing has changed."""
        self._noise += _MEMORY * (1.25 * min(abs(deviation), _MOST_NOISE) - self._noise)

    def restart(self) -> None:
        """Forget suspicions."""
        self._sides = {1: _Side(), -1: _Side()}

    def _limit(self) -> float:
        variance = min(max(self._noise, _LEAST_NOISE), _MOST_NOISE) ** 2
        needed = variance / (2 * _DRIFT) * math.log(max(1.0, _NUM_BETWEEN_FALSE_ALARMS * 2 * _DRIFT**2 / variance))
        return max(_LEAST_ALARM, needed)


@dataclass
class _Side:
    """The evidence that the value has risen, or that it has fallen."""

    sum: float = 0.0
    num_observations: int = 0
    num_supporting: int = 0

    def add(self, deviation: float) -> None:
        self.sum += deviation - _DRIFT
        self.num_observations += 1
        self.num_supporting += deviation > _DRIFT
        if self.sum <= 0:
            self.sum, self.num_observations, self.num_supporting = 0.0, 0, 0


T = TypeVar("T")


@dataclass
class ChangeWatch(Generic[T]):
    """Looks for a change of a value from its long-term level, and remembers the latest observations."""

    recent: deque[T] = field(default_factory=lambda: deque(maxlen=_MOST_REPLAYED))
    usual: float | None = None
    """The long-term level; None while it is being learned."""
    _detector: ChangeDetector = field(default_factory=ChangeDetector)
    _num_to_learn: int = _NUM_LEARNING
    _centre: float = 0.0
    """The mean deviation from the usual value: a value that noise cannot pull up lies below the mean."""
    _num_centred: int = 0

    def raises(self, observation: T, deviation: float) -> bool:
        """Add an observation and its deviation from the usual value; return whether there has been a change."""
        self.recent.append(observation)
        is_learning = self._num_centred < _NUM_CENTRING
        shift = math.copysign(min(_DEAD_ZONE, abs(deviation)), deviation) if is_learning else self._centre
        if self._detector.observe(deviation - shift):
            return True
        self._num_to_learn = max(0, self._num_to_learn - 1)
        if self.usual is not None:
            self._learn_usual_deviation(deviation)
        return False

    def _learn_usual_deviation(self, deviation: float) -> None:
        if self._detector.num_suspicious == 0:
            self._num_centred += 1
            self._centre += max(_SLOWLY, 1 / self._num_centred) * (deviation - self._centre)
        if self._num_centred > 1 and self._detector.num_suspicious < _MIN_SUPPORT:  # a change in progress is not noise
            self._detector.learn_noise(deviation - self._centre)

    @property
    def is_suspicious(self) -> bool:
        """Whether a change is likely, but not yet certain."""
        return self._detector.is_alarming

    @property
    def behind_alarm(self) -> list[T]:
        """The observations that the suspicion is based on."""
        return list(self.recent)[-max(self._detector.num_suspicious, _LEAST_REPLAYED) :]

    def settle_on(self, value: float) -> None:
        """Use the value as the usual one, once enough has been learned."""
        if self._num_to_learn == 0 and self.usual is None:
            self.usual = value

    def restart(self) -> None:
        """Learn the usual value again before watching."""
        self._num_to_learn = _NUM_LEARNING
        self.usual = None
        self._centre, self._num_centred = 0.0, 0
        self._detector.restart()
