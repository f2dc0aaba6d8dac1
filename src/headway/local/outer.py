"""Outer optimizers: what becomes of the common model, given the average difference D of a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Outer(Protocol):
    """Applies average differences to the common model; the same on all ranks."""

    @property
    def has_momentum(self) -> bool:
        """Whether it keeps a velocity."""

    def apply(self, common: Tensor, difference: Tensor, velocity: Tensor | None) -> None:
        """Move the common model, and the velocity if there is one, in place."""


def _check_lr(lr: float) -> None:
    if not (isinstance(lr, (int, float)) and 0 < lr < 1e6):
        raise ValueError(f"lr is {lr!r}, but must be a number above 0")


@dataclass(frozen=True)
class Plain:
    """The common model takes the average: w = w - lr D. With an lr of 1 it is the mean of the ranks' models."""

    lr: float = 1.0
    has_momentum = False

    def __post_init__(self) -> None:
        _check_lr(self.lr)

    def apply(self, common: Tensor, difference: Tensor, velocity: Tensor | None) -> None:
        del velocity
        common.sub_(difference, alpha=self.lr)


@dataclass(frozen=True)
class Nesterov:
    """Momentum across rounds: v = m v + D;  w = w - lr (D + m v). DiLoCo's outer optimizer (arXiv 2311.08105).

    For differences that are sent whole: what error feedback sends late would be pushed twice.
    """

    lr: float = 0.7
    momentum: float = 0.9
    has_momentum = True

    def __post_init__(self) -> None:
        _check_lr(self.lr)
        if not (isinstance(self.momentum, (int, float)) and 0 < self.momentum < 1):
            raise ValueError(f"momentum is {self.momentum!r}, but must be a number between 0 and 1")

    def apply(self, common: Tensor, difference: Tensor, velocity: Tensor | None) -> None:
        assert velocity is not None
        velocity.mul_(self.momentum).add_(difference)
        common.sub_(difference.add(velocity, alpha=self.momentum), alpha=self.lr)
