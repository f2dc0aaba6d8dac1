"""How often ranks talk: H local steps from one exchange to the next, whose average is applied some steps late.

    added to a step = (compress + max(send - delay · own step, 0)) / H
    gain of a step  = gain of an exchange / H
    effort          = 1 + (drift (H - 1) + lateness · delay) (1 - agreement)

The effort is how many steps it takes to learn as much as in one that all ranks take together. Ranks that step by
themselves drift apart, each after the noise of its own samples; where their differences agree, nothing is lost:

    agreement = |mean d|² / mean |d|²,  between 1/N and 1

The factors are those of a CNN on Fashion-MNIST with 8 workers and momentum 0.9 (docs/local.md): the accuracy that takes
175 steps with H = 1 takes 200 with 4 and 225 with 8, and a step late costs as much as two more between exchanges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from headway.exchange import Plan
from headway.tuner.front import Floats, Front, Indices

_DRIFT, _LATENESS = 0.06, 0.12
_MOST_DELAY = 4
"""Averages that are later have not been measured; 8 and 16 steps late were seen to teach less than this predicts."""
_FIRST_AGREEMENT = 0.25
_SMOOTHING = 0.3
_MOST_GROWTH = 2


class Pace(NamedTuple):
    """Steps from one exchange to the next, and how many of them late the average is applied."""

    local_steps: int = 1
    delay: int = 0

    @classmethod
    def of(cls, plan: Plan) -> Pace:
        """Return the pace of a plan."""
        return cls(plan.local_steps, plan.delay)


class Pacing:
    """Tells what a pace makes of plans, and learns from how much ranks agree.

    Args:
        paces: The paces to choose from, with local steps; None for a hook, whose ranks take every step together.
    """

    def __init__(self, paces: Sequence[Pace] | None = None) -> None:
        self._is_local = paces is not None
        self._paces = [Pace()] if paces is None else list(paces)
        self.agreement = _FIRST_AGREEMENT

    def learn(self, agreement: float) -> None:
        """Take in how much the differences of ranks agree; NaN if it is not known."""
        if math.isfinite(agreement):
            self.agreement += _SMOOTHING * (min(max(agreement, 0.0), 1.0) - self.agreement)

    def spread(self, front: Front, before: Pace) -> Front:
        """Return the plans of a front at every pace with at most twice the steps from before: more may follow."""
        least = min(pace.local_steps for pace in self._paces)
        most = max(_MOST_GROWTH * before.local_steps, least)
        allowed = [pace for pace in self._paces if pace.local_steps <= most]
        return self._at(front, [(place, pace) for place in range(len(front)) for pace in allowed])

    def at(self, front: Front, pace: Pace) -> Front:
        """Return the plans of a front at one pace."""
        return self._at(front, [(place, pace) for place in range(len(front))])

    def _at(self, front: Front, pairs: Sequence[tuple[int, Pace]]) -> Front:
        places = np.array([place for place, _ in pairs])
        local_steps, delays = np.array([pace for _, pace in pairs], dtype=np.float64).T
        return replace(
            front,
            plans=[replace(front.plans[place], **pace._asdict()) for place, pace in pairs],
            compress_s=front.compress_s[places] / local_steps,
            sync_s=_left_to_send(front, places, delays) / local_steps,
            gain=front.gain[places] / local_steps,
            is_local=self._is_local,
            effort=1 + (_DRIFT * (local_steps - 1) + _LATENESS * delays) * (1 - self.agreement),
        )


def _left_to_send(front: Front, places: Indices, delays: Floats) -> Floats:
    """Return what is left of sending when that many steps have passed; compressing takes the same cores as steps."""
    return np.maximum(front.sync_s[places] - delays * front.own_s, 0.0)


def paces_between(least: int, most: int, *, may_overlap: bool) -> list[Pace]:
    """Return paces whose steps and delays are powers of two, or the ends; delays of at most 4 steps.

    >>> paces_between(1, 4, may_overlap=True)  # doctest: +NORMALIZE_WHITESPACE
    [Pace(local_steps=1, delay=0), Pace(local_steps=1, delay=1), Pace(local_steps=2, delay=0),
     Pace(local_steps=2, delay=1), Pace(local_steps=2, delay=2), Pace(local_steps=4, delay=0),
     Pace(local_steps=4, delay=1), Pace(local_steps=4, delay=2), Pace(local_steps=4, delay=4)]
    """
    powers = [1 << power for power in range(most.bit_length())]
    all_steps = sorted({least, most, *(steps for steps in powers if least < steps < most)})
    return [
        Pace(steps, delay)
        for steps in all_steps
        for delay in ([0, *(each for each in powers if each < steps), steps] if may_overlap else [0])
        if delay <= _MOST_DELAY
    ]
