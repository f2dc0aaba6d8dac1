"""The memory of a bucket: the residual of error feedback, as a whole and tensor by tensor."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from headway.kernels import Memory, Velocity
from headway.kernels.threshold import Threshold


@dataclass(frozen=True)
class Shape:
    """The sizes of a bucket's tensors, in order."""

    numels: tuple[int, ...]
    entry_bytes: int = 4
    """The bytes of an entry of the gradient, in its own type: what a dense exchange sends of it."""

    @cached_property
    def numel(self) -> int:
        """The number of entries of all tensors together."""
        return sum(self.numels)

    def split(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Return the part of a flat tensor that belongs to each tensor."""
        return torch.split(flat, list(self.numels))

    def __add__(self, other: Shape) -> Shape:
        """Return the shape of both in one bucket, which has the wider type.

        >>> Shape((3,), entry_bytes=2) + Shape((4,), entry_bytes=2)
        Shape(numels=(3, 4), entry_bytes=2)
        """
        widths = [shape.entry_bytes for shape in (self, other) if shape.numels]
        return Shape(self.numels + other.numels, max(widths, default=self.entry_bytes))


class BucketMemory:
    """The residual of a bucket, as a whole and tensor by tensor; both are views of the same entries.

    It takes no memory until it is used: a dense plan needs none.

    Args:
        shape: The shape of the bucket.
        residual: Existing residual to use; otherwise zeros, allocated on first use.
        velocity: For momentum correction: see `headway.kernels.Velocity`.
        device: Where to allocate it.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        residual: Tensor | None = None,
        velocity: Velocity | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.shape = shape
        self.velocity = velocity
        self._given = residual
        self._device = device

    @property
    def is_used(self) -> bool:
        """Whether there may be something in it."""
        return self._given is not None or "whole" in vars(self)

    @cached_property
    def whole(self) -> Memory:
        """One memory for all entries."""
        return Memory(self.shape.numel, residual=self._given, velocity=self.velocity, device=self._device)

    @cached_property
    def layers(self) -> Sequence[Memory]:
        """A memory for each tensor."""
        starts = itertools.accumulate(self.shape.numels, initial=0)
        return [self._layer(start, part) for start, part in zip(starts, self.shape.split(self.residual), strict=False)]

    def _layer(self, start: int, residual: Tensor) -> Memory:
        numel = residual.numel()
        velocity = None if self.velocity is None else self.velocity.part(start, start + numel)
        return Memory(numel, residual=residual, velocity=velocity)

    @property
    def residual(self) -> Tensor:
        """All entries, flat."""
        return self.whole.residual

    @property
    def parts(self) -> Sequence[Memory]:
        """All memories of these entries that have been used: the whole, and those of the tensors."""
        return [self.whole, *(self.layers if "layers" in vars(self) else ())]


class Undo:
    """Puts the memory of a bucket back to what it was before a step, to the bit.

    The pass that adds the gradient leaves the old residual in ``residual``. That is the gradient's own buffer if it has
    the type for it: it is free from then on until the average is written, so that an undo takes no memory. A velocity
    has room of its own for what it was.

    Args:
        memory: The memory of the bucket.
        gradient: The gradient that the step adds to it.

    >>> memory, gradient = BucketMemory(Shape((3,))), torch.tensor([1.0, torch.inf, 2.0])
    >>> undo = Undo(memory, gradient)
    >>> memory.whole.accumulate(gradient, undo=undo.residual)
    >>> undo.run()
    >>> memory.residual
    tensor([0., 0., 0.])
    """

    def __init__(self, memory: BucketMemory, gradient: Tensor) -> None:
        is_free = gradient.dtype == torch.float32 and gradient.is_contiguous()
        self.residual = gradient.view(-1) if is_free else torch.empty_like(memory.residual)
        """Room for the residual from before."""
        self.is_filled = False
        """Whether the gradient has been added before the exchange, and the residual from before is saved."""
        self.has_run = False
        self._memory = memory
        self._thresholds = [replace(part.threshold) for part in memory.parts]

    @classmethod
    def of_copy(cls, memory: BucketMemory) -> Undo:
        """Save a memory now, in room of its own: it can be put back however much the gradient's buffer changes."""
        undo = cls(memory, torch.empty(0, dtype=torch.float64))
        undo.residual.copy_(memory.residual)
        return undo

    def run(self) -> None:
        """Put back the saved residual and the thresholds."""
        self.has_run = True
        self._memory.residual.copy_(self.residual)
        if self._memory.velocity is not None:
            self._memory.velocity.restore()
        parts = self._memory.parts
        unknown = [Threshold() for _ in parts[len(self._thresholds) :]]
        for part, threshold in zip(parts, [*self._thresholds, *unknown], strict=True):
            part.threshold, part.has_nonfinite = threshold, False
