"""How a kernel is compiled, and what numba lacks: bit casts, counting zero bits, and fp16 and bf16 to float32.

Kernels see the half formats as bits. fp16 has 5 bits of exponent and 10 of mantissa; bf16 is the upper half of a
float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from headway._compile import compiled

F = TypeVar("F", bound=Callable[..., Any])

HALF_INF_BITS = np.uint16(0x7C00)
HALF_MAGNITUDE = np.uint16(0x7FFF)
_REBIAS = np.float32(2.0**112)  # the exponents' biases differ by 127 - 15
_SUBNORMAL_UNIT = np.float32(2.0**-24)


def kernel(function: F) -> F:
    """Compile a loop."""
    return compiled(function)


def reassociating(function: F) -> F:
    """Compile a sum whose order may change, which is what lets it use vector registers."""
    return compiled(function, fastmath={"reassoc", "contract"})


@intrinsic  # type: ignore[untyped-decorator]
def float_bits(_typing: Any, value: Any) -> Any:
    """Return the 32 bits of a float32 as uint32."""
    signature = types.uint32(types.float32)
    return signature, lambda _context, builder, _sig, args: builder.bitcast(args[0], ir.IntType(32))


@intrinsic  # type: ignore[untyped-decorator]
def bits_float(_typing: Any, value: Any) -> Any:
    """Return the float32 with these 32 bits."""
    signature = types.float32(types.uint32)
    return signature, lambda _context, builder, _sig, args: builder.bitcast(args[0], ir.FloatType())


@intrinsic  # type: ignore[untyped-decorator]
def trailing_zeros(_typing: Any, value: Any) -> Any:
    """Return the position of the lowest bit that is set in a uint32 above 0."""
    signature = types.uint32(types.uint32)
    return signature, lambda _context, builder, _sig, args: builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))


@kernel
def half_to_float(bits: Any) -> Any:
    """Return the float32 equal to the fp16 with these bits; subnormals, Inf and NaN included."""
    magnitude = np.uint32(bits) & np.uint32(0x7FFF)
    wide = float_bits(bits_float(np.uint32(magnitude << np.uint32(13))) * _REBIAS)
    if magnitude < np.uint32(0x400):  # the line above reads a subnormal, which a CPU may be set to flush
        wide = float_bits(np.float32(np.int32(magnitude)) * _SUBNORMAL_UNIT)
    if magnitude >= np.uint32(0x7C00):
        wide |= np.uint32(0x7F800000)
    return bits_float(np.uint32(wide | ((np.uint32(bits) & np.uint32(0x8000)) << np.uint32(16))))


@kernel
def bfloat_to_float(bits: Any) -> Any:
    """Return the float32 equal to the bf16 with these bits."""
    return bits_float(np.uint32(np.uint32(np.uint16(bits)) << np.uint32(16)))


def widen(raw: Any) -> Any:
    """Return an entry of ``arrays.flat_raw`` as float32. For use inside kernels only."""
    raise NotImplementedError


@overload(widen, strict=False)  # type: ignore[untyped-decorator]
def _widen(raw: Any) -> Any:
    if raw == types.uint16:
        return lambda raw: half_to_float(raw)
    if raw == types.int16:
        return lambda raw: bfloat_to_float(raw)
    return lambda raw: raw


def widened(raw: Any, buffer: Any) -> Any:
    """Return a block of gradient entries as float32: ``raw`` itself, or ``buffer`` filled from it. For kernels only."""
    raise NotImplementedError


@overload(widened, strict=False)  # type: ignore[untyped-decorator]
def _widened(raw: Any, buffer: Any) -> Any:
    if raw.dtype == types.float32:
        return lambda raw, buffer: raw

    def fill(raw: Any, buffer: Any) -> Any:
        wide = buffer[: raw.size]
        for i in range(raw.size):
            wide[i] = widen(raw[i])
        return wide

    return fill
