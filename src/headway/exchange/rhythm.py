"""When councils are held."""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST_DELAY, _MOST_DELAY = 3, 12
"""Steps from the one in which a council is held to the first in which its result counts."""
_CALMEST = 4


def delay_for(council_s: float, step_s: float) -> int:
    """Return after how many steps the result of a council can count without anybody waiting for it.

    >>> delay_for(0.3, 0.2), delay_for(0.3, 0.05), delay_for(0.3, 0.0)
    (3, 7, 3)
    """
    steps = math.ceil(council_s / step_s) + 1 if step_s > 0 else 0
    return min(max(steps, LEAST_DELAY), _MOST_DELAY)


@dataclass
class Rhythm:
    """When the next council is, and when the next thorough one; all ranks keep the same, by what rank 0 answers.

    A thorough council calls often enough to know the latency well, and the step before it is measured: plain buckets
    are averaged one after the other, and gain curves are taken. Between them, if ``looks_often``, every third step has
    a brief one, which tells a change soon; more rarely where steps are short beside latency. While a change is
    suspected all are thorough; as long as nothing happens, thorough ones get rarer, down to one in four intervals.

    Args:
        interval: Steps between thorough councils.
        looks_often: Whether there are brief ones between them.
    """

    interval: int
    looks_often: bool = False

    def __post_init__(self) -> None:
        self.restart(0)

    def restart(self, step: int) -> None:
        """Begin, or begin again, at a step."""
        self.next_council = step + LEAST_DELAY if self.looks_often else self._regular_after(step)
        self.next_thorough = step + self.interval if self.looks_often else self.next_council
        self.is_restless = False
        self.delay = LEAST_DELAY
        """Of the council that is under way, or the next one."""
        self._num_calm = 0
        self._expected, self._expected_thorough = self.next_council, self.next_thorough

    def is_due(self, step: int) -> bool:
        """Return whether a council is to be held in a step, if none is under way."""
        return step > 0 and step >= self.next_council

    def is_measured(self, step: int) -> bool:
        """Return whether a thorough council is held in the next step."""
        return step + 1 == self._expected and (self.is_restless or step + 1 >= self._expected_thorough)

    def is_thorough(self, step: int) -> bool:
        """Return whether the council of a step is a thorough one."""
        return self.is_restless or step >= self.next_thorough

    def start(self, step: int) -> None:
        """Note that a council begins: what comes after it can only be expected until its answer counts."""
        counts = step + self.delay
        often = self.looks_often or self.is_restless
        self._expected = counts if often else self._regular_after(counts - 1)
        if self.is_thorough(step):
            self._expected_thorough = step + self.interval

    def following(self, step: int, *, is_restless: bool) -> tuple[float, float, float]:
        """Return, at rank 0, what the council of a step answers: when the next ones are, and whether to hurry."""
        counts = step + self.delay
        if is_restless:
            self._num_calm = 0
            return counts, counts, 1.0
        if not self.looks_often:
            regular = self._regular_after(counts - 1)
            return regular, regular, 0.0
        if not self.is_thorough(step):
            return counts, self.next_thorough, 0.0
        self._num_calm += 1
        return counts, step + self.interval * min(self._num_calm, _CALMEST), 0.0

    def _regular_after(self, step: int) -> int:
        return (step // self.interval + 1) * self.interval

    def adopt(self, next_council: float, next_thorough: float, is_restless: float, delay: float) -> None:
        """Keep to an answer, and to the delay of the next one."""
        self.delay = int(delay)
        self.next_council, self.next_thorough = int(next_council), int(next_thorough)
        self.is_restless = bool(is_restless)
        self._expected, self._expected_thorough = self.next_council, self.next_thorough
