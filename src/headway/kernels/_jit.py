"""How a kernel is compiled, and the bit casts that numba lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from headway._compile import compiled

F = TypeVar("F", bound=Callable[..., Any])


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
