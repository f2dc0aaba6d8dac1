"""The interface of compressors: tensor to message and back."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from headway.errors import MessageError


def wanted_entries(ratio: float, numel: int) -> int:
    """Return k = max(1, ceil(c * numel)).

    >>> wanted_entries(0.01, 250), wanted_entries(0.001, 10), wanted_entries(0.07, 100)
    (3, 1, 7)
    """
    return min(max(1, math.ceil(round(ratio * numel, 6))), numel)


def check_ratio(ratio: float) -> None:
    """Raise `ValueError` unless the ratio is in (0, 1]."""
    if not (isinstance(ratio, (int, float)) and 0 < ratio <= 1):
        raise ValueError(f"ratio is {ratio!r}, but must be above 0 and at most 1: 0.01 sends one entry in 100")


class Compressor(ABC):
    """Tensor to message. The size of a message follows from the number of entries alone.

    Exchanges use a compressor with error feedback (`ErrorFeedback`); gossip uses it as it is, because a difference that
    was sent badly is still there in the next one.
    """

    @property
    def is_unbiased(self) -> bool:
        """Whether E[C(x)] = x: algorithms that average the noise away accept no other."""
        return False

    @property
    def has_bounded_noise(self) -> bool:
        """Whether the error of an entry has a bound that does not grow with the entries."""
        return False

    @abstractmethod
    def num_bytes(self, numel: int) -> int:
        """Return the length of a message in bytes, a multiple of 4."""

    @abstractmethod
    def encode(self, x: Tensor, key: int, *, out: Tensor) -> int:
        """Write the message of a flat float32 tensor; return the number of entries that saturated.

        Args:
            x: The tensor to send.
            key: From `headway.kernels.noise_key`; decoding needs the same key.
            out: Buffer of ``num_bytes`` bytes.
        """

    @abstractmethod
    def add(self, message: Tensor, key: int, *, out: Tensor) -> None:
        """Decode a message and add it to the flat float32 tensor ``out``; a malformed one raises `MessageError`."""

    def decode(self, message: Tensor, key: int, *, out: Tensor) -> None:
        """Replace ``out`` by what a message holds."""
        out.zero_()
        self.add(message, key, out=out)

    def _check_length(self, message: Tensor, numel: int) -> None:
        expected = self.num_bytes(numel)
        if message.numel() != expected:
            raise MessageError(f"{message.numel()} bytes, but {numel} entries take {expected}")


class DenseCompressor(Compressor):
    """A compressor whose messages hold every entry: they are decoded directly, and added through a buffer."""

    @abstractmethod
    def decode(self, message: Tensor, key: int, *, out: Tensor) -> None:
        """Replace ``out`` by what a message holds."""

    def add(self, message: Tensor, key: int, *, out: Tensor) -> None:
        received = torch.empty_like(out)
        self.decode(message, key, out=received)
        out.add_(received)
