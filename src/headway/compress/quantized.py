"""Stochastic quantisation of all entries, with error feedback."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.compress.base import BucketMemory, Compressed, Shape, gain_of
from headway.kernels import dequantize, quantize, quantized_bytes


@dataclass(frozen=True)
class Quantized:
    """Every entry in 8 or 4 bits, scaled by the largest of its block; what rounding takes away stays in the residual.

        sent = Q(G),  residual = G - Q(G)

    **Cost**: one pass to quantise, one to take the error; bits/8 bytes an entry and 4 for each block of 2,048.
    **Error**: unbiased, and fed back.

    >>> Quantized(8).message_bytes(Shape((4096,)))
    4104
    """

    bits: int

    def message_bytes(self, shape: Shape) -> int:
        """Return how long a message is."""
        return quantized_bytes(shape.numel, self.bits)

    def compress(self, gradient: Tensor, memory: BucketMemory, key: int) -> Compressed:
        """Add the gradient, quantise the sum, and keep the error."""
        memory.whole.accumulate(gradient)
        message = torch.empty(self.message_bytes(memory.shape), dtype=torch.uint8, device=gradient.device)
        quantize(memory.residual, self.bits, key, out=message)
        sent = torch.empty_like(memory.residual)
        dequantize(message, self.bits, out=sent)
        memory.residual.sub_(sent)
        memory.whole.drop_nonfinite()
        return Compressed(message, gain_of(sent, memory.residual))

    def add(self, message: Tensor, shape: Shape, out: Tensor) -> None:
        """Add a message."""
        received = torch.empty(shape.numel, device=message.device)
        dequantize(message, self.bits, out=received)
        out.add_(received)
