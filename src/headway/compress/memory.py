"""The memory of a bucket: the residual of error feedback, as a whole and tensor by tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from headway.kernels import Memory


@dataclass(frozen=True)
class Shape:
    """The sizes of a bucket's tensors, in order."""

    numels: tuple[int, ...]

    @cached_property
    def numel(self) -> int:
        """The number of entries of all tensors together."""
        return sum(self.numels)

    def split(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Return the part of a flat tensor that belongs to each tensor."""
        return torch.split(flat, list(self.numels))

    def __add__(self, other: Shape) -> Shape:
        return Shape(self.numels + other.numels)


class BucketMemory:
    """The residual of a bucket, as a whole and tensor by tensor; both are views of the same entries.

    It takes no memory until it is used: a dense plan needs none.

    Args:
        shape: The shape of the bucket.
        residual: Existing residual to use; otherwise zeros, allocated on first use.
        device: Where to allocate it.
    """

    def __init__(self, shape: Shape, *, residual: Tensor | None = None, device: torch.device | str = "cpu") -> None:
        self.shape = shape
        self._given = residual
        self._device = device

    @property
    def is_used(self) -> bool:
        """Whether there may be something in it."""
        return self._given is not None or "whole" in vars(self)

    @cached_property
    def whole(self) -> Memory:
        """One memory for all entries."""
        return Memory(self.shape.numel, residual=self._given, device=self._device)

    @cached_property
    def layers(self) -> Sequence[Memory]:
        """A memory for each tensor."""
        return [Memory(part.numel(), residual=part) for part in self.shape.split(self.residual)]

    @property
    def residual(self) -> Tensor:
        """All entries, flat."""
        return self.whole.residual
