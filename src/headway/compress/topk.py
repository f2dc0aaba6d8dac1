"""Exact top-k."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from headway.compress.base import Compressor, check_ratio, wanted_entries
from headway.compress.feedback import Taken
from headway.compress.memory import BucketMemory
from headway.kernels import (
    Memory,
    Selection,
    ValueFormat,
    add_message,
    encode_indices,
    encode_values,
    index_bytes,
    message_bytes,
    select_topk,
    value_bytes,
)


@dataclass(frozen=True)
class TopK(Compressor):
    """The k entries of largest magnitude, with their indices.

        sent = top-k of G,  G = g + residual

    **Cost**: one pass over gradient and residual (see `headway.kernels.Memory`); about 1.1 bytes an index at 1% and
    4 bytes to one bit a value. **Error**: with fp32 values a contraction,
    |G - sent|² <= (1 - k/numel) |G|²; what other formats lose is fed back.

    >>> TopK(0.01).num_bytes(1_000_000)
    50704

    Args:
        ratio: The share of entries to send.
        values: The value format on the wire.
    """

    ratio: float
    values: ValueFormat = "fp32"

    def __post_init__(self) -> None:
        check_ratio(self.ratio)
        value_bytes(1, self.values)

    def num_bytes(self, numel: int) -> int:
        return message_bytes(numel, wanted_entries(self.ratio, numel), self.values)

    def encode(self, x: Tensor, key: int, *, out: Tensor) -> int:
        del key
        indices = self._largest(x, wanted_entries(self.ratio, x.numel()))
        num_index_bytes = index_bytes(x.numel(), indices.numel())
        encode_indices(indices, x.numel(), out=out[:num_index_bytes])
        encode_values(x[indices.long()], self.values, out=out[num_index_bytes:])
        return 0

    def add(self, message: Tensor, key: int, *, out: Tensor) -> None:
        del key
        add_message(message, wanted_entries(self.ratio, out.numel()), self.values, out=out)

    def take(self, gradient: Tensor | None, memory: BucketMemory, *, out: Tensor, undo: Tensor | None = None) -> Taken:
        """Add the gradient to the memory and move its top k into a message, in one pass over the memory."""
        return self.take_from(gradient, memory.whole, out=out, undo=undo)

    def take_from(self, gradient: Tensor | None, memory: Memory, *, out: Tensor, undo: Tensor | None = None) -> Taken:
        """Add a gradient to a memory of its size and move the top k into a message."""
        numel = memory.residual.numel()
        selection = self._select(gradient, memory, wanted_entries(self.ratio, numel), undo)
        num_index_bytes = index_bytes(numel, selection.indices.numel())
        encode_indices(selection.indices, numel, out=out[:num_index_bytes])
        out[num_index_bytes:] = selection.payload
        return Taken(selection.values, selection.lost)

    def _select(self, gradient: Tensor | None, memory: Memory, k: int, undo: Tensor | None) -> Selection:
        return memory.select(gradient, k, value_format=self.values, undo=undo)

    def _largest(self, x: Tensor, k: int) -> Tensor:
        return select_topk(x, k)
