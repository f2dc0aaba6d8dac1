"""Entries of a dense buffer at given indices: gather, clear, scale, scatter-add."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.kernels._jit import kernel
from headway.kernels.arrays import as_array, check_buffer, check_indices, uses_torch


def gather(dense: Tensor, indices: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return ``dense[indices]``."""
    out = torch.empty(indices.numel(), dtype=torch.float32, device=dense.device) if out is None else out
    check_buffer(out, torch.float32, indices.numel(), "out")
    _check(dense, indices)
    if uses_torch(dense):
        out.copy_(dense[indices.long()])
    else:
        _gather(as_array(dense), _in_range(dense, indices), as_array(out))
    return out


def clear(dense: Tensor, indices: Tensor) -> None:
    """Set ``dense[indices]`` to zero."""
    _check(dense, indices)
    if uses_torch(dense):
        dense[indices.long()] = 0.0
    else:
        _clear(as_array(dense), _in_range(dense, indices))


def scale(dense: Tensor, indices: Tensor, factor: float) -> None:
    """Multiply ``dense[indices]``; the indices are distinct."""
    _check(dense, indices)
    if uses_torch(dense):
        dense[indices.long()] *= factor
    else:
        _scale(as_array(dense), _in_range(dense, indices), np.float32(factor))


def scatter_add(dense: Tensor, indices: Tensor, values: Tensor) -> None:
    """Add each value to ``dense`` at its index, in order.

    Every entry of the result is a sum in the order of the calls: ranks that add the same messages in the same order,
    rank 0's first, end up with the same bits.

    **Cost**: one read and one write of the cache line of every index.
    """
    if values.numel() != indices.numel():
        raise ValueError(f"there are {values.numel()} values, but {indices.numel()} indices")
    _check(dense, indices)
    check_buffer(values, torch.float32, indices.numel(), "values")
    if uses_torch(dense):
        dense.index_add_(0, indices.long(), values)
    else:
        add_at(as_array(dense), _in_range(dense, indices), as_array(values))


def _check(dense: Tensor, indices: Tensor) -> None:
    check_indices(indices)
    check_buffer(indices, indices.dtype, indices.numel(), "indices")
    check_buffer(dense, torch.float32, dense.numel(), "dense")


def _in_range(dense: Tensor, indices: Tensor) -> Any:
    """Return the indices as an array, checked, because the loops do not check bounds."""
    positions = as_array(indices)
    lowest, highest = _range(positions)
    if lowest < 0 or highest >= dense.numel():
        outside = lowest if lowest < 0 else highest
        raise ValueError(f"index {outside} is outside a buffer of {dense.numel()} entries")
    return positions


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
def _scale(dense: Any, indices: Any, factor: Any) -> None:
    for i in range(indices.size):
        dense[indices[i]] *= factor


@kernel
def add_at(dense: Any, indices: Any, values: Any) -> None:
    """Add each value at its index, which is in range: bounds are not checked."""
    for i in range(indices.size):
        dense[indices[i]] += values[i]
