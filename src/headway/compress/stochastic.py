"""Stochastic quantisation without a memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from headway.kernels import dequantize, quantize, quantized_bytes

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class StochasticQuantizer:
    """Every entry in 8, 4, 2 or 1 bits, rounded up or down at random.

        C(x) = d floor(x / d + u),  u uniform in [0, 1)

    With ``step=None`` each block of 2,048 entries has d = max|x| / Q, where Q = 127, 7, 1 or 1/2. With a step, d is
    the same for all, and what exceeds Q d saturates; "auto" leaves it to the algorithm to find one.

    **Cost**: two passes; bits/8 bytes an entry, and 4 for each block of 2,048 without a fixed step.
    **Error**: unbiased, but for what saturates; d²/4 an entry at most. Relative to the block's largest entry without
    a fixed step, absolute with one.

    >>> StochasticQuantizer(bits=8).num_bytes(4096), StochasticQuantizer(bits=4, step=0.01).num_bytes(4096)
    (4104, 2048)

    Reference: Alistarh et al., QSGD, 2017.
    """

    bits: int = 8
    step: float | Literal["auto"] | None = None
    is_unbiased: ClassVar[Literal[True]] = True

    def __post_init__(self) -> None:
        if self.step != AUTO and not isinstance(self.step, (int, float, type(None))):
            raise ValueError(f"step is {self.step!r}, but must be a number, 'auto', or None for one scale a block")
        quantized_bytes(0, self.bits, step=self._fixed)

    @property
    def has_bounded_noise(self) -> bool:
        """With a fixed step."""
        return self.step is not None

    @property
    def _fixed(self) -> float | None:
        return None if self.step == AUTO or self.step is None else float(self.step)

    def num_bytes(self, numel: int) -> int:
        """Return how long a message is."""
        return quantized_bytes(numel, self.bits, step=1.0 if self.step == AUTO else self._fixed)

    def encode(self, x: Tensor, key: int, *, out: Tensor) -> int:
        """Quantise; return how many entries have saturated."""
        return quantize(x, self.bits, key, step=self._known(), out=out)

    def decode(self, message: Tensor, key: int, *, out: Tensor) -> None:
        """Read codes; ``key`` is not used."""
        del key
        dequantize(message, self.bits, step=self._known(), out=out)

    def _known(self) -> float | None:
        if self.step == AUTO:
            raise ValueError("step is 'auto', but nobody has found one: give a number, or let headway.gossip do it")
        return self._fixed
