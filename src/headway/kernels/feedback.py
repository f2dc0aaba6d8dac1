"""The passes over gradient and residual that ``memory`` is made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.kernels import radix
from headway.kernels._jit import float_bits, kernel, reassociating
from headway.kernels._lanes import INF_KEY, KEY_MASK, ROOM, SCAN_BLOCK, collect_block, collect_tail
from headway.kernels.half import widen


@kernel
def accumulate(residual: Any, gradient: Any) -> Any:
    """Add the gradient; return the largest key of the sum, which tells of Inf and NaN."""
    largest = np.uint32(0)
    for i in range(residual.size):
        total = residual[i] + widen(gradient[i])
        residual[i] = total
        largest = max(largest, float_bits(total) & KEY_MASK)
    return largest


@kernel
def _add(residual: Any, gradient: Any) -> None:
    for i in range(residual.size):
        residual[i] += widen(gradient[i])


@kernel
def accumulate_and_extract(residual: Any, gradient: Any, key: Any, offsets: Any, found: Any) -> tuple[int, bool]:
    """Add; collect and clear what reaches the key, until the room is used up; always add to the end."""
    num_found = 0
    tail = residual.size - residual.size % SCAN_BLOCK
    last_fit = offsets.size - ROOM
    for at in range(0, tail, SCAN_BLOCK):
        _add(residual[at : at + SCAN_BLOCK], gradient[at : at + SCAN_BLOCK])
        if num_found <= last_fit:
            num_found = collect_block(residual, at, key, True, offsets, found, num_found)
    _add(residual[tail:], gradient[tail:])
    if num_found <= last_fit:
        num_found = collect_tail(residual, key, True, offsets, found, num_found)
    return num_found, num_found <= last_fit


@reassociating
def energy_of(block: Any) -> float:
    """Return the sum of squares of the finite entries, in float64."""
    energy = 0.0
    for i in range(block.size):
        entry = np.float64(block[i]) if (float_bits(block[i]) & KEY_MASK) < INF_KEY else 0.0
        energy += entry * entry
    return energy


@kernel
def accumulate_and_count(residual: Any, gradient: Any, counts: Any) -> float:
    """Add, count and return the energy of the sum; an empty gradient has been added already."""
    bins = np.empty(SCAN_BLOCK, np.uint16)
    energy = 0.0
    tail = residual.size - residual.size % SCAN_BLOCK
    for at in range(0, tail, SCAN_BLOCK):
        block = residual[at : at + SCAN_BLOCK]
        if gradient.size:
            _add(block, gradient[at : at + SCAN_BLOCK])
        radix.count_block(block, bins, counts)
        energy += energy_of(block)
    if gradient.size:
        _add(residual[tail:], gradient[tail:])
    radix.count_tail(residual[tail:], counts)
    return energy + energy_of(residual[tail:])


@kernel
def drop_nonfinite(residual: Any) -> None:
    """Set Inf and NaN to zero."""
    for i in range(residual.size):
        if (float_bits(residual[i]) & KEY_MASK) >= INF_KEY:
            residual[i] = np.float32(0)
