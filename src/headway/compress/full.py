"""No compression."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.compress.base import DenseCompressor


@dataclass(frozen=True)
class FullPrecision(DenseCompressor):
    """Every entry as it is; gossip's ``compressor=None``.

    **Cost**: one copy; 4 bytes an entry. **Error**: none.

    >>> FullPrecision().num_bytes(10)
    40
    """

    is_unbiased = True
    has_bounded_noise = True

    def num_bytes(self, numel: int) -> int:
        return 4 * numel

    def encode(self, x: Tensor, key: int, *, out: Tensor) -> int:
        del key
        out.view(torch.float32).copy_(x)
        return 0

    def decode(self, message: Tensor, key: int, *, out: Tensor) -> None:
        del key
        self._check_length(message, out.numel())
        out.copy_(message.view(torch.float32))
