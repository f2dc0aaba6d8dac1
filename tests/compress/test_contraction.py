"""Scaling a compressor to a contraction."""

from __future__ import annotations

import torch

from headway.compress import Contraction, StochasticQuantizer


def sent_by(compressor, x: torch.Tensor, key: int = 1) -> torch.Tensor:
    message = torch.empty(compressor.num_bytes(x.numel()), dtype=torch.uint8)
    compressor.encode(x, key, out=message)
    out = torch.empty_like(x)
    compressor.decode(message, key, out=out)
    return out


def normal(numel: int) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(numel))


def test_few_bits_alone_add_more_noise_than_there_is_signal_and_their_contraction_does_not():
    x = normal(5000)
    assert float((sent_by(StochasticQuantizer(bits=1), x) - x).norm() / x.norm()) > 1.5
    assert float((sent_by(Contraction(StochasticQuantizer(bits=1)), x) - x).norm() / x.norm()) < 1
