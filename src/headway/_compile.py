"""Compiles loops by numba, without the GIL, cached on disk."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F, **options: Any) -> F:
    """Compile a loop over arrays.

    It releases the GIL, so that other threads go on while it runs; it is cached, so that only the first process on a
    machine compiles it; it follows IEEE semantics, because NaN must stay NaN.
    """
    options = {"nogil": True, "error_model": "numpy", **options}
    try:
        dispatcher = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's can be written: compile in every process
        return cast(F, numba.njit(**options)(function))
    _drop_stale_cache(function, Path(dispatcher.stats.cache_path))
    return cast(F, dispatcher)


def cache_folder(function: Callable[..., Any]) -> Path | None:
    """Return where a compiled function is cached; None if nothing can be written and every process compiles it."""
    path = getattr(function, "stats", None) and function.stats.cache_path  # type: ignore[attr-defined]
    return Path(path) if path else None


def _drop_stale_cache(function: Callable[..., Any], folder: Path) -> None:
    """Delete the cached code of a function if any file of its package has changed since.

    numba compares a cached function with its own file only, yet functions inline each other across files: after an
    edit or an upgrade that touches one of them, the others would go on running the old code.
    """
    source = Path(inspect.getfile(function))
    for index in folder.glob(f"{source.stem}.{function.__qualname__}-*.nbi"):
        try:
            if index.stat().st_mtime_ns < _newest_source_ns(source.parent):
                index.unlink()
        except OSError:  # another process was faster
            continue


@cache
def _newest_source_ns(package: Path) -> int:
    return max(source.stat().st_mtime_ns for source in package.glob("*.py"))
