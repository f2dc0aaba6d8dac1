"""What compressors have in common: a bucket's memory, and the interface."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from headway.kernels import Memory


def wanted_entries(ratio: float, numel: int) -> int:
    """Return k = max(1, ceil(c * numel)).

    >>> wanted_entries(0.01, 250), wanted_entries(0.001, 10), wanted_entries(0.07, 100)
    (3, 1, 7)
    """
    return min(max(1, math.ceil(round(ratio * numel, 6))), numel)


def check_ratio(ratio: float) -> None:
    """Raise unless it is a share of entries that can be sent."""
    if not (isinstance(ratio, (int, float)) and 0 < ratio <= 1):
        raise ValueError(f"ratio is {ratio!r}, but must be above 0 and at most 1: 0.01 sends one entry in 100")


@dataclass(frozen=True)
class Shape:
    """The sizes of a bucket's tensors, in their order."""

    numels: tuple[int, ...]

    @cached_property
    def numel(self) -> int:
        """How many entries all of them have."""
        return sum(self.numels)

    def split(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Return the part of a flat tensor that each of them has."""
        return torch.split(flat, list(self.numels))

    def __add__(self, other: Shape) -> Shape:
        return Shape(self.numels + other.numels)


class BucketMemory:
    """The residual of a bucket, as a whole and tensor by tensor; both are views of the same entries.

    It takes no memory until it is used: a dense plan needs none.

    Args:
        shape: The bucket's.
        residual: Where it lives, if it is there already; otherwise zeros, made when first used.
        device: Where to make it.
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


class Compressed(NamedTuple):
    """A message, valid until the memory's next step, and how much of G it holds."""

    message: Tensor
    gain: float


def gain_of(sent: Tensor, residual: Tensor) -> float:
    """Return |sent|² / |G|², where what was sent is no longer in the residual; NaN if Inf or NaN was sent.

    >>> gain_of(torch.tensor([3.0]), torch.tensor([4.0, 0.0]))
    0.36
    """
    sent_energy, rest = (float(torch.linalg.vector_norm(x)) ** 2 for x in (sent, residual))
    if not math.isfinite(sent_energy):
        return math.nan
    return sent_energy / (sent_energy + rest) if sent_energy + rest > 0 else 1.0


class Compressor(Protocol):
    """Tensor to message, with error feedback. The size of a message follows from the shape alone."""

    def message_bytes(self, shape: Shape) -> int:
        """Return how long a message is."""

    def compress(self, gradient: Tensor, memory: BucketMemory, key: int) -> Compressed:
        """Add the gradient to the memory, and take a message out of it.

        Args:
            gradient: Flat, of a floating type.
            memory: The bucket's.
            key: From `headway.kernels.noise_key`, for compressors that draw random numbers.
        """

    def add(self, message: Tensor, shape: Shape, out: Tensor) -> None:
        """Add what a message holds to the float32 tensor ``out``; a malformed one raises `MessageError`."""
