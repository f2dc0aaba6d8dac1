"""Any compressor, made a contraction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from headway.compress.plain import PlainCompressor
from headway.errors import MessageError


@dataclass(frozen=True)
class Contraction:
    """What another compressor sends, times the factor that brings it nearest to x.

        C'(x) = η C(x),  η = <C(x), x> / |C(x)|²

    An unbiased compressor of few bits adds more noise than there is signal; fed back, that diverges. Scaled like this
    nothing does, since |C'(x) - x|² = |x|² - <C(x), x>² / |C(x)|².

    **Cost**: that of the other, one more decoding and two dot products for who sends; 4 bytes. **Error**: a
    contraction by the squared sine of the angle between C(x) and x.

    >>> from headway.compress import StochasticQuantizer
    >>> Contraction(StochasticQuantizer(bits=1)).num_bytes(4096)
    524
    """

    inner: PlainCompressor
    is_unbiased: ClassVar[Literal[False]] = False
    has_bounded_noise: ClassVar[Literal[False]] = False

    def num_bytes(self, numel: int) -> int:
        """Return how long a message is."""
        return 4 + self.inner.num_bytes(numel)

    def encode(self, x: Tensor, key: int, *, out: Tensor) -> int:
        """Write the factor, and the message of the other compressor."""
        num_unfit = self.inner.encode(x, key, out=out[4:])
        sent = torch.empty_like(x)
        self.inner.decode(out[4:], key, out=sent)
        energy = torch.dot(sent, sent)
        factor = torch.dot(sent, x) / energy if float(energy) != 0 else torch.ones((), device=x.device)
        out[:4].view(torch.float32).copy_(factor.view(1))
        return num_unfit

    def decode(self, message: Tensor, key: int, *, out: Tensor) -> None:
        """Read the message, and apply the factor."""
        if message.numel() != self.num_bytes(out.numel()):
            expected = self.num_bytes(out.numel())
            raise MessageError(f"{message.numel()} bytes, but {out.numel()} entries take {expected}")
        self.inner.decode(message[4:], key, out=out)
        out.mul_(message[:4].view(torch.float32))
