"""What gossip finds out by itself: how much noise a compressor makes, and the steps that follow from it."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.compress import PlainCompressor
from headway.kernels import noise_key

_SAMPLE = 1 << 16
_HEADROOM = 4.0


def relative_error(compressor: PlainCompressor) -> float:
    """Return |C(z) - z| / |z| for 65,536 normal entries.

    >>> from headway.compress import StochasticQuantizer
    >>> round(relative_error(StochasticQuantizer(bits=8)), 3)
    0.012
    """
    z = torch.randn(_SAMPLE, generator=torch.Generator().manual_seed(0))
    key = noise_key(0, 0, 0)
    message = torch.empty(compressor.num_bytes(_SAMPLE), dtype=torch.uint8)
    compressor.encode(z, key, out=message)
    sent = torch.empty_like(z)
    compressor.decode(message, key, out=sent)
    return float((sent - z).norm() / z.norm())


def automatic_step(x: Tensor, bits: int) -> float:
    """Return a fixed step for ECD with so many bits: room for four times the largest parameter, in two digits.

    z, a model extrapolated, is larger than a model, the more so the longer training goes on.
    """
    largest = float(x.abs().max()) if x.numel() else 0.0
    half_range = 0.5 if bits == 1 else (1 << (bits - 1)) - 1
    return float(f"{_HEADROOM * (largest or 1.0) / half_range:.1e}")


def automatic_consensus_step(compressor: PlainCompressor) -> float:
    """Return γ_c by what a compressor lets through of normal entries: δ^1.5, δ = 1 - |C(z) - z|² / |z|², in two digits.

    Near what papers found by tuning: 0.5 for sign (0.45), 0.03 for random 10% (0.05), 1 for none.

    >>> from headway.compress import FullPrecision, Sign
    >>> automatic_consensus_step(FullPrecision()), automatic_consensus_step(Sign())
    (1.0, 0.51)
    """
    through = 1 - relative_error(compressor) ** 2
    return max(round(float(max(through, 0.0) ** 1.5), 2), 0.01)
