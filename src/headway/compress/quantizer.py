"""Stochastic quantisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from headway.compress.base import DenseCompressor
from headway.kernels import dequantize, quantize, quantized_bytes


@dataclass(frozen=True, kw_only=True)
class StochasticQuantizer(DenseCompressor):
    """Every entry in 8, 4, 2 or 1 bits, rounded up or down at random.

        C(x) = d floor(x / d + u),  u uniform in [0, 1)

    With ``step=None`` each block of 2,048 entries has d = max|x| / Q, where Q = 127, 7, 1 or 1/2. With a step, d is
    the same for all entries, and what exceeds Q d saturates; with "auto" the algorithm that uses it chooses the step.

    **Cost**: two passes; bits/8 bytes an entry, and 4 for each block of 2,048 without a fixed step.
    **Error**: unbiased, except for entries that saturate; d²/4 an entry at most. Relative to the block's largest entry
    without a fixed step, absolute with one.

    >>> StochasticQuantizer(bits=8).num_bytes(4096), StochasticQuantizer(bits=4, step=0.01).num_bytes(4096)
    (4104, 2048)

    Reference: Alistarh et al., QSGD, 2017.
    """

    bits: int = 8
    step: float | Literal["auto"] | None = None
    is_unbiased = True

    def __post_init__(self) -> None:
        if self.step != "auto" and not isinstance(self.step, (int, float, type(None))):
            raise ValueError(f"step is {self.step!r}, but must be a number, 'auto', or None for one scale a block")
        quantized_bytes(0, self.bits, step=self._fixed)

    @property
    def has_bounded_noise(self) -> bool:
        return self.step is not None

    @property
    def _fixed(self) -> float | None:
        return None if self.step == "auto" or self.step is None else float(self.step)

    def num_bytes(self, numel: int) -> int:
        return quantized_bytes(numel, self.bits, step=1.0 if self.step == "auto" else self._fixed)

    def encode(self, x: Tensor, key: int, *, out: Tensor) -> int:
        return quantize(x, self.bits, key, step=self._known(), out=out)

    def decode(self, message: Tensor, key: int, *, out: Tensor) -> None:
        del key
        dequantize(message, self.bits, step=self._known(), out=out)

    def _known(self) -> float | None:
        if self.step == "auto":
            raise ValueError("step is 'auto', but none was chosen yet: give a number, or let headway.gossip choose it")
        return self._fixed
