"""The warm-up: large ratios at first, then down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """The least ratio allowed, falling evenly on a log scale from ``max_ratio`` to ``min_ratio``.

    Early gradients change much from step to step: what is sent late then is sent too late.

    >>> warm_up = WarmUp(min_ratio=0.001, max_ratio=0.1, num_steps=20)
    >>> [round(warm_up.least_ratio(step), 4) for step in (0, 10, 20, 30)]
    [0.1, 0.01, 0.001, 0.001]
    """

    min_ratio: float
    max_ratio: float
    num_steps: int

    def is_on(self, step: int) -> bool:
        """Return whether ratios are still being held up."""
        return step < self.num_steps

    def least_ratio(self, step: int) -> float:
        """Return the least ratio allowed at a step."""
        share = min(step / self.num_steps, 1.0) if self.num_steps else 1.0
        return float(self.max_ratio * (self.min_ratio / self.max_ratio) ** share * (1 - 1e-9))
