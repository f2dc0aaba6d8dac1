"""How a kernel is compiled, and the bit casts that numba lacks.

A kernel is a plain loop over flat arrays. It releases the GIL, so that backward goes on while it runs, and is
cached on disk, so that only the first process on a machine compiles it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])


def _drop_stale_cache(folder: Path) -> None:
    """Delete compiled kernels older than any source file of this package.

    numba compares a cached kernel with its own file only, yet kernels inline each other across files: after an
    edit or a ``git pull`` that touches one of them, the others would go on running the old code.
    """
    newest_source = max(source.stat().st_mtime_ns for source in folder.glob("*.py"))
    for index in (folder / "__pycache__").glob("*.nbi"):
        try:
            if index.stat().st_mtime_ns < newest_source:
                index.unlink()
        except OSError:  # another process was faster, or the folder is read-only and so cannot be edited either
            continue


_drop_stale_cache(Path(__file__).parent)


def kernel(function: F) -> F:
    """Compile a loop; IEEE semantics, because NaN must stay NaN."""
    return cast(F, numba.njit(nogil=True, cache=True, error_model="numpy")(function))


def reassociating(function: F) -> F:
    """Compile a sum whose order may change, which is what lets it use vector registers."""
    flags = {"reassoc", "contract"}
    return cast(F, numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=flags)(function))


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
