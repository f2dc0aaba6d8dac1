"""Policies: which plan of the Pareto front to take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from headway.tuner.front import Floats, Front

_LENIENT = 0.8
_LOCAL_SHARE = 0.25
"""What of a least gain is asked for with local steps, whose gain is that of an exchange over its steps."""

Policy = Callable[[Front], Floats]
"""Takes a front to a score above 0 for each of its plans. The highest wins; a switch needs a score 5% higher."""


@dataclass(frozen=True, kw_only=True)
class Balanced:
    """The least time to the same loss.

        score = 1 / (steps needed · step time),   steps needed = 1 + (patience / gain)^1.5

    With error feedback nothing is lost, only delayed, by about 1/gain steps: as long as the delay is short, a step
    is worth as much as a dense one, and then less and less. A patience of 0.025 fits the time to a loss during training
    (`benchmarks/learning.py`); the accuracy at the end of a run of given length needs more. With momentum correction
    an entry that waits keeps its momentum, and gains of 0.03 teach about as much a step as dense ones. With local steps
    the same holds, and the gain of a step is that of an exchange over its steps: docs/local.md has the measurements.

    Args:
        patience: The gain at which twice the steps are needed.
        corrected_patience: The same with momentum correction.
        local_patience: The same with local steps.
        floor: Below this gain training may diverge, and a plan is taken only if there is no other.
    """

    patience: float = 0.15
    corrected_patience: float = 0.01
    local_patience: float = 0.0035
    floor: float = 0.01

    def __call__(self, front: Front) -> Floats:
        patience = self.corrected_patience if front.is_corrected else self.patience
        patience = self.local_patience if front.is_local else patience
        scores = 1 / ((1 + (patience / front.gain) ** 1.5) * front.progress_s)
        return _lowered_below(self.floor, front, scores)


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """The most gain a second.

        score = gain^p / step time

    Args:
        exponent: p, how much the progress of a step depends on its gain. With 1, half the gain needs twice the steps.
    """

    exponent: float = 0.15

    def __call__(self, front: Front) -> Floats:
        return np.asarray(front.gain**self.exponent / front.progress_s)


@dataclass(frozen=True, kw_only=True)
class Knee:
    """The knee of the front: where no objective improves without another getting much worse.

        asf = max(0.6 · time, 0.4 · loss),  each from 0 (the best on the front) to 1 (the worst);  score = 1 / (1 + asf)

    Time is that of compressing and sending; loss is 1/gain. Paper: arXiv 2312.02493.

    Args:
        time_weight: The weight of time.
        gain_weight: The weight of 1/gain.
    """

    time_weight: float = 0.6
    gain_weight: float = 0.4

    def __call__(self, front: Front) -> Floats:
        time, loss = _normalised(front.compress_s + front.sync_s), _normalised(1 / front.gain)
        asf = np.maximum(self.time_weight * time, self.gain_weight * loss)
        return np.asarray(1 / (1 + asf))


@dataclass(frozen=True, kw_only=True)
class Shortest:
    """The shortest step with enough gain; of those about as short, the one with the most gain.

    If none has enough gain, the one with the most.

    Args:
        floor: The least gain.
        slack: Steps longer than the shortest by up to this share count as equally short.
    """

    floor: float
    slack: float = 0.05

    def __call__(self, front: Front) -> Floats:
        step_s, is_enough = front.progress_s, front.gain >= _floors(self.floor, front)
        shortest_s = step_s[is_enough].min(initial=np.inf)
        slack = np.full(len(front), self.slack)
        if front.in_force is not None:
            slack[front.in_force] *= 3
        is_short = is_enough & (step_s <= shortest_s * (1 + slack))
        scores = np.where(is_short, (1 + front.gain) / np.where(is_short, shortest_s, 1.0), 1 / step_s)
        return _lowered_below(self.floor, front, scores)


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "balanced": Balanced(),
        "fast": Shortest(floor=0.01),
        "accurate": Shortest(floor=0.8),
        "goodput": Goodput(),
        "knee": Knee(),
    }
)


def policy_of(policy: str | Policy) -> Policy:
    """Return a policy by its name, or itself.

    >>> policy_of("accurate")
    Shortest(floor=0.8, slack=0.05)
    """
    if callable(policy):
        return policy
    if policy not in POLICIES:
        raise ValueError(f"policy is {policy!r}, but must be one of {', '.join(POLICIES)}, or take a Front to scores")
    return POLICIES[policy]


def _lowered_below(floor: float, front: Front, scores: Floats) -> Floats:
    """Return the scores, with those of plans below a gain lowered beneath all others, and growing with their gain."""
    return np.asarray(np.where(front.gain >= _floors(floor, front), scores, front.gain * scores.min() * 1e-3))


def _floors(floor: float, front: Front) -> Floats:
    """Return the least gain for each plan: that of the plan in force is lower, so that noise does not flip it."""
    floors = np.full(len(front), floor * (_LOCAL_SHARE if front.is_local else 1.0))
    if front.in_force is not None:
        floors[front.in_force] *= _LENIENT
    return floors


def _normalised(values: Floats) -> Floats:
    span = np.ptp(values)
    return np.asarray((values - values.min()) / span) if span > 0 else np.zeros_like(values)
