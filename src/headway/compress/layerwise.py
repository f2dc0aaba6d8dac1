"""Top-k within each tensor of a bucket (LWTopk)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.compress.base import BucketMemory, Compressed, Shape, gain_of, wanted_entries
from headway.compress.topk import add_sparse, sparse_bytes, write_sparse
from headway.errors import MessageError
from headway.kernels import ValueFormat


@dataclass(frozen=True)
class LayerwiseTopK:
    """The same ratio of every tensor: layers with small gradients are heard too.

        sent = top-k_l of G_l for each tensor l,  k_l = max(1, ceil(c numel_l))

    **Cost**: as `TopK`, and a fixed cost for each tensor; at least one entry of each. **Error**: a contraction, as
    `TopK` in each tensor.

    >>> LayerwiseTopK(0.01).message_bytes(Shape((1000, 10)))
    64
    """

    ratio: float
    values: ValueFormat = "fp32"

    def message_bytes(self, shape: Shape) -> int:
        """Return how long a message is."""
        return sum(num_bytes for _, _, num_bytes in self._sections(shape))

    def compress(self, gradient: Tensor, memory: BucketMemory, key: int) -> Compressed:
        """Add the gradient, take the top k of each tensor out; ``key`` is not used."""
        del key
        message = torch.empty(self.message_bytes(memory.shape), dtype=torch.uint8, device=gradient.device)
        rest, taken = message, []
        parts = memory.shape.split(gradient.reshape(-1))
        for (numel, k, num_bytes), part, layer in zip(self._sections(memory.shape), parts, memory.layers, strict=True):
            selection = layer.select(part, k, value_format=self.values)
            write_sparse(selection, numel, rest[:num_bytes])
            taken.append(selection.values)
            rest = rest[num_bytes:]
        return Compressed(message, gain_of(torch.cat(taken), memory.residual))

    def add(self, message: Tensor, shape: Shape, out: Tensor) -> None:
        """Add a message, once all of it is known to be long enough."""
        if message.numel() != self.message_bytes(shape):
            raise MessageError(f"{message.numel()} bytes, but this bucket takes {self.message_bytes(shape)}")
        first_byte, first = 0, 0
        for numel, k, num_bytes in self._sections(shape):
            section = message[first_byte : first_byte + num_bytes]
            add_sparse(section, numel, k, self.values, out[first : first + numel])
            first_byte, first = first_byte + num_bytes, first + numel

    def _sections(self, shape: Shape) -> Iterator[tuple[int, int, int]]:
        """Yield (numel, k, bytes) of each tensor."""
        for numel in shape.numels:
            k = wanted_entries(self.ratio, numel)
            yield numel, k, sparse_bytes(numel, k, self.values)
