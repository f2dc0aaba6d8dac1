"""When control rounds are held."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.tuner.messages import NextRounds

MIN_DELAY, _MAX_DELAY = 3, 12
"""Steps from the start of a control round to the first step for which its answer holds."""
_MOST_INTERVALS = 4
"""Thorough rounds get rarer while nothing happens, down to one in this many intervals."""


def delay_for(round_s: float, step_s: float, least: int = MIN_DELAY) -> int:
    """Return after how many steps the answer of a control round can hold without any rank waiting for it.

    >>> delay_for(0.3, 0.2), delay_for(0.3, 0.05), delay_for(0.3, 0.0)
    (3, 7, 3)
    """
    steps = math.ceil(round_s / step_s) + 1 if step_s > 0 else 0
    return min(max(steps, least), _MAX_DELAY)


@dataclass
class RoundSchedule:
    """When the next control round is, and when the next thorough one; the same on all ranks, as rank 0 answers.

    A thorough round sends enough pings to know the latency well, and the step before it is measured: plain buckets are
    averaged one after the other, and gain curves are taken. Between thorough rounds, if ``looks_often``, every third
    step has a brief one, which shows a change soon; more rarely where steps are short compared with latency. While a
    change is suspected all rounds are thorough; as long as nothing happens, thorough ones get rarer, down to one in
    four intervals.

    Args:
        interval: Steps between thorough rounds.
        looks_often: Whether there are brief rounds between them.
        least_delay: The least number of steps from the start of a round until its answer holds.
    """

    interval: int
    looks_often: bool = False
    least_delay: int = MIN_DELAY

    def __post_init__(self) -> None:
        self.restart(0)

    def restart(self, step: int) -> None:
        """Begin, or begin again, at a step."""
        next_round = step + self.least_delay if self.looks_often else self._regular_after(step)
        next_thorough = step + self.interval if self.looks_often else next_round
        self._num_calm = 0
        self.adopt(NextRounds(next_round, next_thorough, is_restless=False, delay=self.least_delay))

    def adopt(self, rounds: NextRounds) -> None:
        """Follow what rank 0 has answered."""
        self.rounds = rounds
        self._expected, self._expected_thorough = rounds.next_round, rounds.next_thorough

    @property
    def delay(self) -> int:
        """The delay of the round that is under way, or of the next one."""
        return self.rounds.delay

    def is_due(self, step: int) -> bool:
        """Return whether a round starts at a step, if none is under way."""
        return step > 0 and step >= self.rounds.next_round

    def is_measured(self, step: int) -> bool:
        """Return whether a thorough round is held in the next step."""
        return step + 1 == self._expected and (self.rounds.is_restless or step + 1 >= self._expected_thorough)

    def is_thorough(self, step: int) -> bool:
        """Return whether the round of a step is a thorough one."""
        return self.rounds.is_restless or step >= self.rounds.next_thorough

    def start(self, step: int) -> None:
        """Take in that a round starts: the rounds after it can only be expected until its answer holds."""
        holds_from = step + self.delay
        often = self.looks_often or self.rounds.is_restless
        self._expected = holds_from if often else self._regular_after(holds_from - 1)
        if self.is_thorough(step):
            self._expected_thorough = step + self.interval

    def following(self, step: int, *, is_restless: bool, delay: int) -> NextRounds:
        """Return, on rank 0, when the rounds after that of a step are, and the delay of the next one."""
        holds_from = step + self.delay
        if is_restless:
            self._num_calm = 0
            return NextRounds(holds_from, holds_from, is_restless=True, delay=delay)
        if not self.looks_often:
            regular = self._regular_after(holds_from - 1)
            return NextRounds(regular, regular, is_restless=False, delay=delay)
        if not self.is_thorough(step):
            return NextRounds(holds_from, self.rounds.next_thorough, is_restless=False, delay=delay)
        self._num_calm += 1
        next_thorough = step + self.interval * min(self._num_calm, _MOST_INTERVALS)
        return NextRounds(holds_from, next_thorough, is_restless=False, delay=delay)

    def _regular_after(self, step: int) -> int:
        return (step // self.interval + 1) * self.interval
