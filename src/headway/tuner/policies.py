"""Policies: of all that cannot be had faster without learning less, which to take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from headway.tuner.front import Floats, Front

_LENIENT = 0.8

Policy = Callable[[Front], Floats]
"""From a front to a score for each of its plans, above 0. The highest wins; 5% more are worth a switch."""


@dataclass(frozen=True, kw_only=True)
class Balanced:
    """Least time to learn the same.

        score = 1 / (steps needed · step time),   steps needed = 1 + (patience / gain)^1.5

    With error feedback nothing is lost, only late, by some 1/gain steps: as long as that is little, steps teach as much
    as dense ones, and then less and less. To a loss on the way a patience of 0.025 fits (`benchmarks/learning.py`);
    the accuracy at the end of a run of given length asks for more.

    Args:
        patience: The gain at which twice the steps are needed.
        floor: Below this gain training may diverge, and a plan counts as good as nothing.
    """

    patience: float = 0.15
    floor: float = 0.01

    def __call__(self, front: Front) -> Floats:
        """Return the score of each plan."""
        scores = 1 / ((1 + (self.patience / front.gain) ** 1.5) * np.maximum(front.step_s, 1e-9))
        return _unless_below(self.floor, front, scores)


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Most gain a second.

        score = gain^p / step time

    Args:
        exponent: p, how much a step's teaching depends on its gain. With 1, half the gain needs twice the steps.
    """

    exponent: float = 0.15

    def __call__(self, front: Front) -> Floats:
        """Return the score of each plan."""
        return np.asarray(front.gain**self.exponent / np.maximum(front.step_s, 1e-9))


@dataclass(frozen=True, kw_only=True)
class Knee:
    """The knee of the front: nothing can be bettered without something else getting much worse.

        asf = max(0.6 · time, 0.4 · loss),  each from 0 (the best on the front) to 1 (the worst);  score = 1 / (1 + asf)

    Time is that of compressing and sending; loss is 1/gain. Paper: arXiv 2312.02493.

    Args:
        time_weight: Of time.
        gain_weight: Of 1/gain.
    """

    time_weight: float = 0.6
    gain_weight: float = 0.4

    def __call__(self, front: Front) -> Floats:
        """Return the score of each plan."""
        time, loss = _normalised(front.compress_s + front.sync_s), _normalised(1 / front.gain)
        asf = np.maximum(self.time_weight * time, self.gain_weight * loss)
        return np.asarray(1 / (1 + asf))


@dataclass(frozen=True, kw_only=True)
class Shortest:
    """The shortest step that teaches enough; of those that are as short, within 5%, the one that teaches most.

    If none teaches enough, the one that teaches most.

    Args:
        floor: The least gain.
        slack: What counts as as short.
    """

    floor: float
    slack: float = 0.05

    def __call__(self, front: Front) -> Floats:
        """Return the score of each plan."""
        step_s, teaches = np.maximum(front.step_s, 1e-9), front.gain >= _floors(self.floor, front)
        shortest_s = step_s[teaches].min(initial=np.inf)
        slack = np.full(len(front), self.slack)
        if front.in_force is not None:
            slack[front.in_force] *= 3
        is_short = teaches & (step_s <= shortest_s * (1 + slack))
        scores = np.where(is_short, (1 + front.gain) / np.where(is_short, shortest_s, 1.0), 1 / step_s)
        return _unless_below(self.floor, front, scores)


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


def _unless_below(floor: float, front: Front, scores: Floats) -> Floats:
    """Return scores; those of plans below a gain are less than any other, and grow with their gain."""
    return np.asarray(np.where(front.gain >= _floors(floor, front), scores, front.gain * scores.min() * 1e-3))


def _floors(floor: float, front: Front) -> Floats:
    """Return the least gain for each plan: the one in force may be a little below, so that noise does not flip it."""
    floors = np.full(len(front), floor)
    if front.in_force is not None:
        floors[front.in_force] *= _LENIENT
    return floors


def _normalised(values: Floats) -> Floats:
    span = np.ptp(values)
    return np.asarray((values - values.min()) / span) if span > 0 else np.zeros_like(values)
