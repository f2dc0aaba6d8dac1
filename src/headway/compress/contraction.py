"""Any compressor, scaled so that it is a contraction."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.compress.base import Compressor, DenseCompressor


@dataclass(frozen=True)
class Contraction(DenseCompressor):
    """What another compressor sends, times the factor that brings it closest to x.

        C'(x) = η C(x),  η = <C(x), x> / |C(x)|²

    An unbiased compressor of few bits adds more noise than there is signal, and diverges with error feedback. The
    scaled one does not, since |C'(x) - x|² = |x|² - <C(x), x>² / |C(x)|².

    **Cost**: that of the other compressor, one more decoding and two dot products for the sender; 4 bytes. **Error**: a
    contraction by the squared sine of the angle between C(x) and x.

    >>> from headway.compress import StochasticQuantizer
    >>> Contraction(StochasticQuantizer(bits=1)).num_bytes(4096)
    524
    """

    inner: Compressor

    def num_bytes(self, numel: int) -> int:
        return 4 + self.inner.num_bytes(numel)

    def encode(self, x: Tensor, key: int, *, out: Tensor) -> int:
        num_unfit = self.inner.encode(x, key, out=out[4:])
        sent = torch.empty_like(x)
        self.inner.decode(out[4:], key, out=sent)
        energy = torch.dot(sent, sent)
        factor = torch.dot(sent, x) / energy if float(energy) != 0 else torch.ones((), device=x.device)
        out[:4].view(torch.float32).copy_(factor.view(1))
        return num_unfit

    def decode(self, message: Tensor, key: int, *, out: Tensor) -> None:
        self._check_length(message, out.numel())
        self.inner.decode(message[4:], key, out=out)
        out.mul_(message[:4].view(torch.float32))
