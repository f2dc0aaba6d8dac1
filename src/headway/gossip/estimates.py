"""What a rank knows of its neighbours' models: their weighted sum, with or without a replica of each.

Every algorithm changes its estimates in the same way, e_j <- keep e_j + gain q_j by the message q_j. With a fixed W
the sum over neighbours can be changed like that as a whole (`Accumulator`); but then a neighbour's part cannot be
taken out again when it is lost, for which each needs a replica (`Replicas`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Change(NamedTuple):
    """How a message changes an estimate: e <- keep e + gain q."""

    keep: float
    gain: float


class Estimates(Protocol):
    """The weighted sum of the neighbours' models, as far as they are known here."""

    own_weight: float
    """W_ii."""
    sum: Tensor
    """Σ_{j≠i} W_ij e_j."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The neighbours that are left."""

    def start(self, x: Tensor) -> None:
        """Begin from where everybody has the same model."""

    def begin(self, change: Change) -> None:
        """Make ready for the messages of a step."""

    def add(self, rank: int, message: Tensor) -> None:
        """Take in what a neighbour has sent."""

    def end(self) -> None:
        """Finish the step."""

    def can_drop(self, change: Change) -> bool:
        """Return whether a neighbour can be left out that does not send the message of such a step."""

    def drop(self, rank: int) -> None:
        """Leave out a neighbour: its weight goes to this rank, as this rank's does at its end."""

    def state(self) -> dict[str, Tensor]:
        """Return all tensors."""

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take them over."""


class Accumulator:
    """The sum alone: one tensor, however many neighbours.

    **Memory**: 4 bytes a parameter.

    Args:
        own_weight: W_ii.
        weights: W_ij of each neighbour.
        numel: How many parameters there are.
        device: Where to keep the sum.
    """

    def __init__(self, own_weight: float, weights: Mapping[int, float], numel: int, device: torch.device) -> None:
        self.own_weight = own_weight
        self._weights = dict(weights)
        self._gain = 1.0
        self.sum = torch.zeros(numel, device=device)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The neighbours that are left."""
        return tuple(self._weights)

    def start(self, x: Tensor) -> None:
        """Begin from where everybody has the same model."""
        torch.mul(x, sum(self._weights.values()), out=self.sum)

    def begin(self, change: Change) -> None:
        """Make ready for the messages of a step."""
        self._gain = change.gain
        if change.keep == 0:
            self.sum.zero_()  # also what is not a number
        elif change.keep != 1:
            self.sum.mul_(change.keep)

    def add(self, rank: int, message: Tensor) -> None:
        """Take in what a neighbour has sent."""
        self.sum.add_(message, alpha=self._gain * self._weights[rank])

    def end(self) -> None:
        """Finish the step."""

    def can_drop(self, change: Change) -> bool:
        """Only where nothing of earlier messages is in the sum."""
        return change.keep == 0

    def drop(self, rank: int) -> None:
        """Leave out a neighbour."""
        self.own_weight += self._weights.pop(rank)

    def state(self) -> dict[str, Tensor]:
        """Return the sum."""
        return {"sum": self.sum}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take it over."""
        self.sum.copy_(state["sum"])


class Replicas:
    """A replica of each neighbour's model, and their sum.

    **Memory**: 4 (degree + 1) bytes a parameter.

    Args:
        own_weight: W_ii.
        weights: W_ij of each neighbour.
        numel: How many parameters there are.
        device: Where to keep them.
    """

    def __init__(self, own_weight: float, weights: Mapping[int, float], numel: int, device: torch.device) -> None:
        self.own_weight = own_weight
        self._weights = dict(weights)
        self._change = Change(1.0, 1.0)
        self._replicas = {rank: torch.zeros(numel, device=device) for rank in weights}
        self.sum = torch.zeros(numel, device=device)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The neighbours that are left."""
        return tuple(self._weights)

    def start(self, x: Tensor) -> None:
        """Begin from where everybody has the same model."""
        for replica in self._replicas.values():
            replica.copy_(x)
        self.end()

    def begin(self, change: Change) -> None:
        """Make ready for the messages of a step."""
        self._change = change

    def add(self, rank: int, message: Tensor) -> None:
        """Take in what a neighbour has sent."""
        replica, (keep, gain) = self._replicas[rank], self._change
        if keep == 0:
            torch.mul(message, gain, out=replica)
        else:
            (replica if keep == 1 else replica.mul_(keep)).add_(message, alpha=gain)

    def end(self) -> None:
        """Add up, in order of rank."""
        self.sum.zero_()
        for rank, weight in self._weights.items():
            self.sum.add_(self._replicas[rank], alpha=weight)

    def can_drop(self, change: Change) -> bool:
        """Always."""
        del change
        return True

    def drop(self, rank: int) -> None:
        """Leave out a neighbour."""
        self.own_weight += self._weights.pop(rank)
        del self._replicas[rank]

    def state(self) -> dict[str, Tensor]:
        """Return the replicas."""
        return {str(rank): replica for rank, replica in self._replicas.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take them over."""
        for rank, replica in self._replicas.items():
            replica.copy_(state[str(rank)])
        self.end()
