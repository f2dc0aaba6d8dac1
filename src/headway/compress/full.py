"""No compression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from headway.errors import MessageError


@dataclass(frozen=True)
class FullPrecision:
    """Every entry as it is: what ``compressor=None`` stands for.

    **Cost**: one copy; 4 bytes an entry. **Error**: none.

    >>> FullPrecision().num_bytes(10)
    40
    """

    is_unbiased: ClassVar[Literal[True]] = True
    has_bounded_noise: ClassVar[Literal[True]] = True

    def num_bytes(self, numel: int) -> int:
        """Return how long a message is."""
        return 4 * numel

    def encode(self, x: Tensor, key: int, *, out: Tensor) -> int:
        """Copy; ``key`` is not used."""
        del key
        out.view(torch.float32).copy_(x)
        return 0

    def decode(self, message: Tensor, key: int, *, out: Tensor) -> None:
        """Copy back."""
        del key
        if message.numel() != 4 * out.numel():
            raise MessageError(f"{message.numel()} bytes, but {out.numel()} entries take {4 * out.numel()}")
        out.copy_(message.view(torch.float32))
