"""How loops are compiled: by numba, without the GIL, cached on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a loop over arrays.

    It releases the GIL, so that Python goes on while it runs; it is cached, so that only the first process on a machine
    compiles it; it keeps to IEEE semantics, because NaN must stay NaN.
    """
    return cast(F, numba.njit(nogil=True, cache=True, error_model="numpy")(function))


def drop_stale_cache(folder: Path) -> None:
    """Delete compiled functions of a package that are older than any of its source files.

    numba compares a cached function with its own file only, yet functions inline each other across files: after an
    edit or a ``git pull`` that touches one of them, the others would go on running the old code.
    """
    newest_source = max(source.stat().st_mtime_ns for source in folder.glob("*.py"))
    for index in (folder / "__pycache__").glob("*.nbi"):
        try:
            if index.stat().st_mtime_ns < newest_source:
                index.unlink()
        except OSError:  # another process was faster, or the folder is read-only and so cannot be edited either
            continue
