"""Top-k within each tensor of a bucket (LWTopk)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from headway.compress.base import Compressor
from headway.compress.feedback import Taken
from headway.compress.memory import BucketMemory, Shape
from headway.compress.topk import TopK
from headway.kernels import ValueFormat


@dataclass(frozen=True)
class LayerwiseTopK(Compressor):
    """The same ratio of every tensor, so that layers with small gradients are represented too.

        sent = top-k_l of G_l for each tensor l,  k_l = max(1, ceil(c numel_l))

    **Cost**: as `TopK`, and a fixed cost for each tensor; at least one entry of each. **Error**: a contraction, as
    `TopK` in each tensor.

    >>> LayerwiseTopK(0.01, shape=Shape((1000, 10))).num_bytes(1010)
    64

    Args:
        ratio: The share of entries to send of each tensor.
        values: The value format on the wire.
        shape: The tensors of the bucket.
    """

    ratio: float
    values: ValueFormat = "fp32"
    shape: Shape = field(kw_only=True)

    @cached_property
    def _topk(self) -> TopK:
        return TopK(self.ratio, self.values)

    def num_bytes(self, numel: int) -> int:
        assert numel == self.shape.numel
        return sum(map(self._topk.num_bytes, self.shape.numels))

    def encode(self, x: Tensor, key: int, *, out: Tensor) -> int:
        for part, section in zip(self.shape.split(x), self._sections(out), strict=True):
            self._topk.encode(part, key, out=section)
        return 0

    def add(self, message: Tensor, key: int, *, out: Tensor) -> None:
        self._check_length(message, self.shape.numel)
        for part, section in zip(self.shape.split(out), self._sections(message), strict=True):
            self._topk.add(section, key, out=part)

    def take(self, gradient: Tensor | None, memory: BucketMemory, *, out: Tensor, undo: Tensor | None = None) -> Taken:
        """Take the top k of each tensor, each in one pass over its memory."""
        parts = zip(self._split(gradient), memory.layers, self._sections(out), self._split(undo), strict=True)
        taken = [self._topk.take_from(part, layer, out=section, undo=saved) for part, layer, section, saved in parts]
        return Taken(*map(torch.cat, zip(*taken, strict=True)))

    def _split(self, flat: Tensor | None) -> Sequence[Tensor | None]:
        return [None] * len(self.shape.numels) if flat is None else self.shape.split(flat.reshape(-1))

    def _sections(self, message: Tensor) -> Iterator[Tensor]:
        """Yield the part of a message that belongs to each tensor."""
        return iter(torch.split(message, [self._topk.num_bytes(numel) for numel in self.shape.numels]))
