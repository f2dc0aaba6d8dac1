"""Exact top-k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from headway.compress.base import BucketMemory, Compressed, Shape, check_ratio, gain_of, wanted_entries
from headway.errors import MessageError
from headway.kernels import (
    Memory,
    Selection,
    ValueFormat,
    decode_indices,
    decode_values,
    encode_indices,
    encode_values,
    index_bytes,
    scatter_add,
    select_topk,
    value_bytes,
)


def sparse_bytes(numel: int, k: int, values: ValueFormat) -> int:
    """Return the length of a message of k indices and values."""
    return index_bytes(numel, k) + value_bytes(k, values)


def write_sparse(selection: Selection, numel: int, out: Tensor) -> None:
    """Write indices and values into a message."""
    num_index_bytes = index_bytes(numel, selection.indices.numel())
    encode_indices(selection.indices, numel, out=out[:num_index_bytes])
    out[num_index_bytes:] = selection.payload


def add_sparse(message: Tensor, numel: int, k: int, values: ValueFormat, out: Tensor) -> None:
    """Check a message, and add its values at its indices."""
    num_bytes = sparse_bytes(numel, k, values)
    if message.numel() != num_bytes:
        raise MessageError(f"{message.numel()} bytes, but {k} of {numel} entries as {values} take {num_bytes}")
    num_index_bytes = index_bytes(numel, k)
    indices = decode_indices(message[:num_index_bytes], numel, k)
    decoded = torch.empty(k, device=message.device)
    decode_values(message[num_index_bytes:], k, values, out=decoded)
    scatter_add(out, indices, decoded)


@dataclass(frozen=True)
class TopK:
    """The k entries of largest magnitude of the whole bucket, with their indices.

        sent = top-k of G,  G = g + residual

    **Cost**: one pass over gradient and residual (see `headway.kernels.Memory`); about 1.4 bytes an index at 1% and
    4, 2 or 1 bytes a value. **Error**: a contraction, |G - sent|² <= (1 - k/numel) |G|².

    >>> TopK(0.01).message_bytes(Shape((1_000_000,)))
    53924
    """

    ratio: float
    values: ValueFormat = "fp32"
    is_unbiased: ClassVar[Literal[False]] = False
    has_bounded_noise: ClassVar[Literal[False]] = False

    def __post_init__(self) -> None:
        check_ratio(self.ratio)
        value_bytes(1, self.values)

    def message_bytes(self, shape: Shape) -> int:
        """Return how long a message is."""
        return self.num_bytes(shape.numel)

    def compress(self, gradient: Tensor, memory: BucketMemory, key: int) -> Compressed:
        """Add the gradient, take the top k out; ``key`` is not used."""
        del key
        numel = memory.shape.numel
        selection = self._select(gradient, memory.whole, wanted_entries(self.ratio, numel))
        message = torch.empty(self.message_bytes(memory.shape), dtype=torch.uint8, device=gradient.device)
        write_sparse(selection, numel, message)
        return Compressed(message, gain_of(selection.values, memory.residual))

    def _select(self, gradient: Tensor, memory: Memory, k: int) -> Selection:
        return memory.select(gradient, k, value_format=self.values)

    def add(self, message: Tensor, shape: Shape, out: Tensor) -> None:
        """Add a message."""
        add_sparse(message, shape.numel, wanted_entries(self.ratio, shape.numel), self.values, out)

    def num_bytes(self, numel: int) -> int:
        """Return how long a message is."""
        return sparse_bytes(numel, wanted_entries(self.ratio, numel), self.values)

    def encode(self, x: Tensor, key: int, *, out: Tensor) -> int:
        """Write the top k of a tensor, without a memory; ``key`` is not used."""
        del key
        indices = select_topk(x, wanted_entries(self.ratio, x.numel()))
        num_index_bytes = index_bytes(x.numel(), indices.numel())
        encode_indices(indices, x.numel(), out=out[:num_index_bytes])
        encode_values(x[indices.long()], self.values, out=out[num_index_bytes:])
        return 0

    def decode(self, message: Tensor, key: int, *, out: Tensor) -> None:
        """Read them; the rest is zero."""
        del key
        out.zero_()
        add_sparse(message, out.numel(), wanted_entries(self.ratio, out.numel()), self.values, out)
