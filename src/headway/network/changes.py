"""Has it changed? A cumulative sum of deviations tells a lasting move from noise."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

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

_NUM_LEARNING = 4
"""So many observations after a start are for learning."""
_NUM_CENTRING = 6
"""So many more are for learning what deviations are like."""
_DEAD_ZONE = 0.3
"""As long as things are being learned, deviations count only by what they are larger than this."""
_LEAST_REPLAYED, _MOST_REPLAYED = 3, 8
"""After a change the latest observations are taken in again, as many as the suspicion rested on."""
_SLOWLY = 0.02
"""How fast what is usual follows, in the long run."""


class ChangeDetector:
    """Watches deviations from what is expected, as logarithms of the ratio, by a two-sided CUSUM.

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
        return max(side.sum for side in self._sides.values()) >= max(_LEAST_ALARM, self._limit() / 2)

    def observe(self, deviation: float) -> bool:
        """Take in the logarithm of measured / expected; return whether it has changed."""
        clipped = max(-_CLIP, min(_CLIP, deviation))
        for sign, side in self._sides.items():
            side.add(sign * clipped)
        limit = self._limit()
        return any(side.sum >= limit and side.num_witnesses >= _LEAST_WITNESSES for side in self._sides.values())

    def learn_noise(self, deviation: float) -> None:
        """Take in how far off observations are when nothing has changed."""
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


T = TypeVar("T")


@dataclass
class ChangeWatch(Generic[T]):
    """Looks for a change of a value from what it has been for long, and remembers the latest observations."""

    recent: deque[T] = field(default_factory=lambda: deque(maxlen=_MOST_REPLAYED))
    usual: float | None = None
    """What it has been for long; None while that is being learned."""
    _detector: ChangeDetector = field(default_factory=ChangeDetector)
    _num_to_learn: int = _NUM_LEARNING
    _centre: float = 0.0
    """What deviations from the usual value are on average: a value that noise cannot pull up lies below the mean."""
    _num_centred: int = 0

    def raises(self, observation: T, deviation: float) -> bool:
        """Take in an observation and how far from the usual it is; return whether there has been a change."""
        self.recent.append(observation)
        is_learning = self._num_centred < _NUM_CENTRING
        shift = math.copysign(min(_DEAD_ZONE, abs(deviation)), deviation) if is_learning else self._centre
        if self._detector.observe(deviation - shift):
            return True
        self._num_to_learn = max(0, self._num_to_learn - 1)
        if self.usual is not None:
            self._learn_what_is_usual(deviation)
        return False

    def _learn_what_is_usual(self, deviation: float) -> None:
        if self._detector.num_suspicious == 0:
            self._num_centred += 1
            self._centre += max(_SLOWLY, 1 / self._num_centred) * (deviation - self._centre)
        if self._num_centred > 1 and self._detector.num_suspicious < _LEAST_WITNESSES:  # a move under way is not noise
            self._detector.learn_noise(deviation - self._centre)

    @property
    def is_suspicious(self) -> bool:
        """Whether a change is likely, but not yet certain."""
        return self._detector.is_alarming

    @property
    def behind_alarm(self) -> list[T]:
        """The observations that the suspicion rests on."""
        return list(self.recent)[-max(self._detector.num_suspicious, _LEAST_REPLAYED) :]

    def settle_on(self, value: float) -> None:
        """Take the value as the usual one, once it has been learned."""
        if self._num_to_learn == 0 and self.usual is None:
            self.usual = value

    def restart(self) -> None:
        """Learn first, then watch."""
        self._num_to_learn = _NUM_LEARNING
        self.usual = None
        self._centre, self._num_centred = 0.0, 0
        self._detector.restart()
