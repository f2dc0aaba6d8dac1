"""Compressors without a memory: tensor to message, for what is sent once and corrected by the algorithm that sends it.

Gossip needs no error feedback: a difference that was sent badly is still there in the next one. The type says whether
a compressor is unbiased: algorithms that average noise away take no other.
"""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor


class PlainCompressor(Protocol):
    """Tensor to message. The size of a message follows from the number of entries alone."""

    @property
    def is_unbiased(self) -> bool:
        """Whether E[C(x)] = x."""

    @property
    def has_bounded_noise(self) -> bool:
        """Whether the error of an entry has a bound that does not grow with the entries."""

    def num_bytes(self, numel: int) -> int:
        """Return how long a message is, a multiple of 4."""

    def encode(self, x: Tensor, key: int, *, out: Tensor) -> int:
        """Write the message of a flat float32 tensor into ``out``; return how many entries did not fit.

        Args:
            x: What to send.
            key: From `headway.kernels.noise_key`; who reads the message needs the same.
            out: ``num_bytes`` bytes.
        """

    def decode(self, message: Tensor, key: int, *, out: Tensor) -> None:
        """Read a message into the flat float32 tensor ``out``; a malformed one raises `MessageError`."""


class UnbiasedCompressor(PlainCompressor, Protocol):
    """One with E[C(x)] = x."""

    @property
    def is_unbiased(self) -> Literal[True]:
        """True."""


class BiasedCompressor(PlainCompressor, Protocol):
    """One that only brings the receiver nearer: |C(x) - x| < |x|."""

    @property
    def is_unbiased(self) -> Literal[False]:
        """False."""
