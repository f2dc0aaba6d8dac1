"""Compiles loops by numba, without the GIL, cached on disk, once for all processes of a machine."""

from __future__ import annotations

import fcntl
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

_LOCK, _DONE = "headway-compiling.lock", "headway-compiled"


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


@contextmanager
def compiling_alone(function: Callable[..., Any]) -> Iterator[None]:
    """Let one process at a time compile the package of a function; the others find its work in the cache.

    When ranks of a machine start together, all would compile the same otherwise: 8 of them on 2 cores take minutes
    instead of half of one. Once a process has come to the end, nobody waits until a file of the package changes.
    """
    folder, package = cache_folder(function), Path(inspect.getfile(sys.modules[function.__module__])).parent
    if folder is None or _is_done(folder, package):
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:  # no folder, or a file system without locks: compile together
        yield
        return
    with lock:
        yield
        (folder / _DONE).touch()


def _is_done(folder: Path, package: Path) -> bool:
    try:
        return (folder / _DONE).stat().st_mtime_ns > _newest_source_ns(package)
    except OSError:
        return False


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
