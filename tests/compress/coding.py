"""What a compressor makes of a tensor, for the tests of single compressors."""

from __future__ import annotations

import math

import torch

from headway.compress import Compressor


def sent_by(compressor: Compressor, x: torch.Tensor, key: int = 1) -> torch.Tensor:
    """Return what the receiver of a tensor gets."""
    message = torch.empty(compressor.num_bytes(x.numel()), dtype=torch.uint8)
    compressor.encode(x, key, out=message)
    out = torch.full_like(x, math.nan)
    compressor.decode(message, key, out=out)
    return out


def normal(numel: int) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(numel))
