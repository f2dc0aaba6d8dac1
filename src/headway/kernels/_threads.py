"""A flat array split over as many threads as torch uses.

The loops release the GIL, so plain Python threads are enough. numba's own ``prange`` is avoided on purpose: its default
threading layer aborts the process when two Python threads enter it at once, as the engine thread, a data loader or
ranks run as threads may.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")

MIN_CHUNK = 1 << 18
"""Smallest length of a chunk: below it, waking a thread costs more than the loop."""

MAX_CHUNK = 1 << 30
"""Largest length of a chunk: offsets within it fit an int32 with room to spare."""

ALIGNMENT = 2048
"""Chunks start at multiples of this, a multiple of every block size used in this package."""

_pool: ThreadPoolExecutor | None = None
_pool_size = 0


def chunks(numel: int) -> list[slice]:
    """Split ``range(numel)`` evenly into contiguous slices, one for each thread torch may use."""
    wanted = min(torch.get_num_threads(), max(1, numel // MIN_CHUNK))
    length = min(-(-numel // wanted), MAX_CHUNK)
    length = max(ALIGNMENT, -(-length // ALIGNMENT) * ALIGNMENT)
    return [slice(start, min(start + length, numel)) for start in range(0, max(numel, 1), length)]


def run(work: Callable[[int, slice], T], parts: Sequence[slice]) -> list[T]:
    """Call ``work(number, part)`` for all parts in parallel, and return the results in order."""
    if len(parts) == 1 or torch.get_num_threads() == 1:
        return [work(number, part) for number, part in enumerate(parts)]
    return list(_threads(len(parts)).map(work, range(len(parts)), parts))


def _threads(count: int) -> ThreadPoolExecutor:
    global _pool, _pool_size
    if _pool is None or _pool_size < count:
        # A smaller pool that is still in use elsewhere finishes its work; its threads end with it.
        _pool, _pool_size = ThreadPoolExecutor(count, thread_name_prefix="headway-kernel"), count
    return _pool


def _forget_pool() -> None:
    global _pool, _pool_size
    _pool, _pool_size = None, 0


os.register_at_fork(after_in_child=_forget_pool)
