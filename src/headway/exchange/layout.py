"""Which parameters are in which bucket, and how to regroup gradients from one layout to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from headway.compress import Shape


@dataclass(frozen=True)
class BucketLayout:
    """The parameters of a bucket, in order."""

    names: tuple[str, ...]
    numels: tuple[int, ...]
    entry_bytes: int = 4
    """The size of a gradient's entry."""

    @cached_property
    def shape(self) -> Shape:
        """The sizes of the parameters."""
        return Shape(self.numels, self.entry_bytes)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the part of a bucket that belongs to each parameter."""
        return dict(zip(self.names, self.shape.split(flat), strict=True))


Layout = tuple[BucketLayout, ...]


def parameters_of(layout: Layout) -> dict[str, int]:
    """Return the size of every parameter by name."""
    return {name: numel for bucket in layout for name, numel in zip(bucket.names, bucket.numels, strict=True)}


def regroup(flats: Sequence[Tensor], source: Layout, target: Layout) -> list[Tensor]:
    """Return the contents of buckets, rearranged into the buckets of another layout.

    >>> a, b = BucketLayout(("x", "y"), (1, 2)), BucketLayout(("z",), (1,))
    >>> c = BucketLayout(("z", "x", "y"), (1, 1, 2))
    >>> regroup([torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0])], (a, b), (c,))
    [tensor([4., 1., 2., 3.])]
    """
    parts: dict[str, Tensor] = {}
    for flat, bucket in zip(flats, source, strict=True):
        parts |= bucket.split(flat)
    return [torch.cat([parts[name] for name in bucket.names]) for bucket in target]
