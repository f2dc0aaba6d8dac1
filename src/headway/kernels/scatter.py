"""Between a dense buffer and entries at given indices: gather, clear, scatter-add."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.kernels._jit import kernel
from headway.kernels.arrays import writable


def gather(dense: Tensor, indices: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return ``dense[indices]``."""
    out = torch.empty(indices.numel(), dtype=torch.float32, device=dense.device) if out is None else out
    if dense.device.type != "cpu":
        out.copy_(dense[indices.long()])
        return out
    source, positions = _checked(dense, indices)
    target = writable(out, torch.float32, "out")
    if target.size != positions.size:
        raise ValueError(f"out has {target.size} entries, but there are {positions.size} indices")
    _gather(source, positions, target)
    return out


def clear(dense: Tensor, indices: Tensor) -> None:
    """Set ``dense[indices]`` to zero."""
    if dense.device.type != "cpu":
        dense[indices.long()] = 0.0
        return
    _clear(*_checked(dense, indices))


def scatter_add(dense: Tensor, indices: Tensor, values: Tensor) -> None:
    """Add each value to ``dense`` at its index, in order.

    Every entry of the result is a sum in the order of the calls: ranks that add the same messages in the same order,
    rank 0's first, hold the same bits afterwards.

    **Cost**: one read and one write of the cache line of every index.
    """
    if values.numel() != indices.numel():
        raise ValueError(f"there are {values.numel()} values, but {indices.numel()} indices")
    if dense.device.type != "cpu":
        dense.index_add_(0, indices.long(), values)
        return
    target, positions = _checked(dense, indices)
    _scatter_add(target, positions, writable(values, torch.float32, "values"))


def _checked(dense: Tensor, indices: Tensor) -> tuple[Any, Any]:
    """Return both as arrays; no index may lie outside, because a loop does not look."""
    if indices.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"indices must be int32 or int64, but are {indices.dtype}")
    array = writable(dense, torch.float32, "dense")
    positions = writable(indices, indices.dtype, "indices")
    lowest, highest = _range(positions)
    if lowest < 0 or highest >= array.size:
        outside = lowest if lowest < 0 else highest
        raise ValueError(f"index {outside} is outside of a buffer of {array.size} entries")
    return array, positions


@kernel
def _range(indices: Any) -> tuple[Any, Any]:
    lowest, highest = np.int64(0), np.int64(-1)
    for i in range(indices.size):
        lowest = min(lowest, np.int64(indices[i]))
        highest = max(highest, np.int64(indices[i]))
    return lowest, highest


@kernel
def _gather(dense: Any, indices: Any, out: Any) -> None:
    for i in range(indices.size):
        out[i] = dense[indices[i]]


@kernel
def _clear(dense: Any, indices: Any) -> None:
    for i in range(indices.size):
        dense[indices[i]] = np.float32(0)


@kernel
def _scatter_add(dense: Any, indices: Any, values: Any) -> None:
    for i in range(indices.size):
        dense[indices[i]] += values[i]
