"""What a rank knows of its neighbours' models: their weighted sum, with or without a replica of each.

Every algorithm changes its estimates in the same way, e_j <- keep e_j + gain q_j by the message q_j. With a fixed W
the sum over neighbours can be changed as a whole (`Accumulator`); but then a lost neighbour's part cannot be taken
out of it, for which each neighbour needs a replica (`Replicas`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class Change(NamedTuple):
    """How a message changes an estimate: e <- keep e + gain q."""

    keep: float
    gain: float


class Estimates(ABC):
    """The weighted sum of the neighbours' models, as far as they are known here.

    Args:
        own_weight: W_ii.
        weights: W_ij of each neighbour.
        numel: Number of parameters.
        device: Device of the tensors.
    """

    def __init__(self, own_weight: float, weights: Mapping[int, float], numel: int, device: torch.device) -> None:
        self.own_weight = own_weight
        self.weights = dict(weights)
        """W_ij of each neighbour that is left."""
        self.sum = torch.zeros(numel, device=device)
        """Σ_{j≠i} W_ij e_j."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The neighbours that are left."""
        return tuple(self.weights)

    @abstractmethod
    def start(self, x: Tensor) -> None:
        """Start from a model that is the same on all ranks."""

    @abstractmethod
    def begin(self, change: Change) -> None:
        """Prepare for the messages of a round."""

    @abstractmethod
    def add(self, rank: int, message: Tensor) -> None:
        """Apply a neighbour's message."""

    @abstractmethod
    def end(self) -> None:
        """Finish the round."""

    @abstractmethod
    def can_drop(self, change: Change) -> bool:
        """Return whether a neighbour can be dropped whose message of a round with this change is missing."""

    def drop(self, rank: int) -> None:
        """Leave out a neighbour; its weight goes to this rank, as this rank's weight does on the other end."""
        self.own_weight += self.weights.pop(rank)

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return all tensors that a resumed run needs."""

    @abstractmethod
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""


class Accumulator(Estimates):
    """The sum alone: one tensor for any number of neighbours.

    **Memory**: 4 bytes a parameter.
    """

    _gain = 1.0

    def start(self, x: Tensor) -> None:
        torch.mul(x, sum(self.weights.values()), out=self.sum)

    def begin(self, change: Change) -> None:
        self._gain = change.gain
        if change.keep == 0:
            self.sum.zero_()  # multiplying by 0 would keep NaN
        elif change.keep != 1:
            self.sum.mul_(change.keep)

    def add(self, rank: int, message: Tensor) -> None:
        self.sum.add_(message, alpha=self._gain * self.weights[rank])

    def end(self) -> None:
        """Do nothing: the sum is up to date after each message."""

    def can_drop(self, change: Change) -> bool:
        """Return True only where the sum holds nothing of earlier messages."""
        return change.keep == 0

    def state(self) -> dict[str, Tensor]:
        return {"sum": self.sum}

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.sum.copy_(state["sum"])


class Replicas(Estimates):
    """A replica of each neighbour's model, and their sum.

    **Memory**: 4 (degree + 1) bytes a parameter.
    """

    _change = Change(1.0, 1.0)

    def __init__(self, own_weight: float, weights: Mapping[int, float], numel: int, device: torch.device) -> None:
        super().__init__(own_weight, weights, numel, device)
        self._replicas = {rank: torch.zeros(numel, device=device) for rank in weights}

    def start(self, x: Tensor) -> None:
        for replica in self._replicas.values():
            replica.copy_(x)
        self.end()

    def begin(self, change: Change) -> None:
        self._change = change

    def add(self, rank: int, message: Tensor) -> None:
        replica, (keep, gain) = self._replicas[rank], self._change
        if keep == 0:
            torch.mul(message, gain, out=replica)
        else:
            (replica if keep == 1 else replica.mul_(keep)).add_(message, alpha=gain)

    def end(self) -> None:
        """Add up the replicas, in order of rank."""
        self.sum.zero_()
        for rank, weight in self.weights.items():
            self.sum.add_(self._replicas[rank], alpha=weight)

    def can_drop(self, change: Change) -> bool:
        """Return True: a replica can always be taken out."""
        del change
        return True

    def drop(self, rank: int) -> None:
        super().drop(rank)
        del self._replicas[rank]

    def state(self) -> dict[str, Tensor]:
        return {str(rank): replica for rank, replica in self._replicas.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        for rank, replica in self._replicas.items():
            replica.copy_(state[str(rank)])
        self.end()
