"""Error feedback: what a compressor does not send stays in a memory, and takes part in the next step.

G = g + residual;   sent = C(G);   residual = G - sent
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from headway.compress.base import Compressor
from headway.compress.memory import BucketMemory


class Compressed(NamedTuple):
    """A message, valid until the memory's next step, and its gain."""

    message: Tensor
    gain: float


@runtime_checkable
class FusedCompressor(Protocol):
    """A compressor that adds the gradient, selects and clears in one pass over the memory."""

    def take(self, gradient: Tensor, memory: BucketMemory, *, out: Tensor) -> Tensor:
        """Add the gradient to the memory, move a message out of it, and return the values that were sent."""


@dataclass(frozen=True)
class ErrorFeedback:
    """Error feedback around any compressor.

    **Cost**: for a `FusedCompressor`, such as top-k, one pass over gradient and memory. For any other, one pass to add
    the gradient, encoding, decoding, and one pass to subtract what was sent.

    Args:
        compressor: Makes the messages.
    """

    compressor: Compressor

    def compress(self, gradient: Tensor, memory: BucketMemory, key: int) -> Compressed:
        """Add the gradient to the memory, and move a message out of it.

        Args:
            gradient: Flat, float32 or narrower.
            memory: The memory of the bucket.
            key: From `headway.kernels.noise_key`, for compressors that draw random numbers.
        """
        num_bytes = self.compressor.num_bytes(memory.shape.numel)
        message = torch.empty(num_bytes, dtype=torch.uint8, device=gradient.device)
        if isinstance(self.compressor, FusedCompressor):
            sent = self.compressor.take(gradient, memory, out=message)
        else:
            sent = self._take_generic(gradient, memory, key, message)
        return Compressed(message, gain_of(sent, memory.residual))

    def _take_generic(self, gradient: Tensor, memory: BucketMemory, key: int, message: Tensor) -> Tensor:
        memory.whole.accumulate(gradient)
        self.compressor.encode(memory.residual, key, out=message)
        sent = torch.empty_like(memory.residual)
        self.compressor.decode(message, key, out=sent)
        memory.residual.sub_(sent)
        memory.whole.drop_nonfinite()
        return sent


def gain_of(sent: Tensor, residual: Tensor) -> float:
    """Return |sent|² / |G|² after what was sent has left the residual; NaN if Inf or NaN was sent.

    >>> gain_of(torch.tensor([3.0]), torch.tensor([4.0, 0.0]))
    0.36
    """
    sent_energy, rest = (float(torch.linalg.vector_norm(x)) ** 2 for x in (sent, residual))
    if not math.isfinite(sent_energy):
        return math.nan
    return sent_energy / (sent_energy + rest) if sent_energy + rest > 0 else 1.0
