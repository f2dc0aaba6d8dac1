"""Momentum correction: each rank's own momentum goes into the residual, where an optimizer would apply it afterwards.

    u = m u + g;   residual = residual + u                (Nesterov: residual = residual + m u + g)

An entry that waits in the residual has its momentum counted as if it had not waited. Where an entry is sent, u is
masked: momentum from before does not push an entry that has just moved. The more entries are sent, the more often each
of them is, and the more of its momentum it would lose if u were cleared, as in the paper; so

    u = u min(1, sqrt(ratio / 3%))  at what is sent

and a step that sends everything is SGD's. Cleared entirely, u costs 1 point of accuracy at 3% (docs/tuner.md).

Lin et al., Deep Gradient Compression, ICLR 2018.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headway.kernels import scatter
from headway.kernels.arrays import as_array, check_buffer

_EMPTY = np.empty(0, np.float32)
_UNMASKED_RATIO = 0.03
"""From this ratio on, entries keep their momentum when they are sent."""


def kept_share(ratio: float) -> float:
    """Return the share of its momentum that an entry keeps when this share of all entries is sent.

    >>> [round(kept_share(ratio), 2) for ratio in (0.001, 0.01, 0.03, 1.0)]
    [0.18, 0.58, 1.0, 1.0]
    """
    return min(1.0, math.sqrt(ratio / _UNMASKED_RATIO))


@dataclass
class Momentum:
    """The momentum of an optimizer: its factor m, which may change between steps, and whether it is Nesterov's."""

    factor: float
    is_nesterov: bool = False


class Motion(NamedTuple):
    """A velocity as the loops take it; empty arrays where there is none."""

    velocity: Any
    before: Any
    factor: np.float32
    is_nesterov: bool

    def part(self, where: slice) -> Motion:
        """Return a part of the arrays."""
        return Motion(self.velocity[where], self.before[where], self.factor, self.is_nesterov)


AT_REST = Motion(_EMPTY, _EMPTY, np.float32(0), False)
"""No momentum correction."""


class Velocity:
    """The momentum u of a flat gradient, and what it was before the last step, so that a step can be undone.

    Args:
        values: u, float32.
        before: Room for u from before a step, of the same size.
        momentum: The factor, shared by all velocities of a model.

    >>> velocity = Velocity.zeros(2, Momentum(0.5))
    >>> velocity.advance(torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    >>> velocity.advance(torch.tensor([1.0, 2.0]))
    tensor([1.5000, 3.0000])
    >>> velocity.restore()
    >>> velocity.values
    tensor([1., 2.])
    """

    def __init__(self, values: Tensor, before: Tensor, momentum: Momentum) -> None:
        check_buffer(values, torch.float32, values.numel(), "velocity")
        check_buffer(before, torch.float32, values.numel(), "the velocity's room")
        self.values = values
        self.before = before
        self.momentum = momentum

    @classmethod
    def zeros(cls, numel: int, momentum: Momentum, device: torch.device | str = "cpu") -> Velocity:
        """Return a velocity at rest."""
        return cls(torch.zeros(numel, device=device), torch.empty(numel, device=device), momentum)

    def part(self, start: int, stop: int) -> Velocity:
        """Return the velocity of some entries; both share memory."""
        return Velocity(self.values[start:stop], self.before[start:stop], self.momentum)

    def to(self, device: torch.device) -> Velocity:
        """Return the velocity on another device."""
        return Velocity(self.values.to(device), self.before.to(device), self.momentum)

    def added_by(self, gradient: Tensor) -> Tensor:
        """Return what the residual would get from a gradient, and change nothing."""
        return Velocity(self.values.clone(), torch.empty_like(self.before), self.momentum).advance(gradient)

    def advance(self, gradient: Tensor) -> Tensor:
        """Take a gradient in, by torch operations; return what the residual gets."""
        added = gradient.detach().reshape(-1).to(torch.float32)
        self.before.copy_(self.values)
        self.values.mul_(self.momentum.factor).add_(added)
        if not self.momentum.is_nesterov:
            return self.values.clone()
        return self.values.mul(self.momentum.factor).add_(added)

    def mask(self, indices: Tensor) -> None:
        """Take momentum from entries that are sent."""
        kept = kept_share(indices.numel() / max(self.values.numel(), 1))
        if kept < 1:
            scatter.scale(self.values, indices, kept)

    def restore(self) -> None:
        """Undo the last step, to the bit."""
        self.values.copy_(self.before)

    @property
    def motion(self) -> Motion:
        """The arrays and numbers for the loops."""
        momentum = self.momentum
        return Motion(as_array(self.values), as_array(self.before), np.float32(momentum.factor), momentum.is_nesterov)
