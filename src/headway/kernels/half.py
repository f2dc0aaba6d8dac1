"""fp16 and bf16 as bits, widened to float32 inside a loop.

fp16 has 5 bits of exponent and 10 of mantissa; bf16 is the upper half of a float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from headway.kernels._jit import bits_float, float_bits, kernel

INF_BITS = np.uint16(0x7C00)
MAGNITUDE = np.uint16(0x7FFF)

_REBIAS = np.float32(2.0**112)  # 127 - 15: between the exponents' biases
_SUBNORMAL_UNIT = np.float32(2.0**-24)


@kernel
def half_to_float(bits: Any) -> Any:
    """Return the float32 equal to the fp16 with these bits; subnormals, Inf and NaN included."""
    magnitude = np.uint32(bits) & np.uint32(0x7FFF)
    wide = float_bits(bits_float(np.uint32(magnitude << np.uint32(13))) * _REBIAS)
    if magnitude < np.uint32(0x400):  # not by the line above, which reads a subnormal: a CPU may be set to flush those
        wide = float_bits(np.float32(np.int32(magnitude)) * _SUBNORMAL_UNIT)
    if magnitude >= np.uint32(0x7C00):
        wide |= np.uint32(0x7F800000)
    return bits_float(np.uint32(wide | ((np.uint32(bits) & np.uint32(0x8000)) << np.uint32(16))))


@kernel
def bfloat_to_float(bits: Any) -> Any:
    """Return the float32 equal to the bf16 with these bits."""
    return bits_float(np.uint32(np.uint32(np.uint16(bits)) << np.uint32(16)))


def widen(raw: Any) -> Any:
    """Return a gradient entry, as ``arrays.flat_raw`` gives it, as float32. For use inside kernels only."""
    raise NotImplementedError


@overload(widen, strict=False)  # type: ignore[untyped-decorator]
def _widen(raw: Any) -> Any:
    if raw == types.uint16:
        return lambda raw: half_to_float(raw)
    if raw == types.int16:
        return lambda raw: bfloat_to_float(raw)
    return lambda raw: raw
