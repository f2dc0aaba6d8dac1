"""The passes over gradient and residual that ``memory`` is made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.kernels import radix
from headway.kernels._jit import float_bits, kernel, reassociating, widen, widened
from headway.kernels._lanes import INF_KEY, KEY_MASK, ROOM, SCAN_BLOCK, collect_block, collect_tail


@kernel
def accumulate(residual: Any, gradient: Any) -> Any:
    """Add the gradient; return the largest key of the sum, which shows whether it has Inf or NaN."""
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
    """Add the whole gradient; collect and clear what reaches the key, until the buffers are full.

    Returns the number of entries collected, and whether that is all of them.
    """
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
def accumulate_and_count(residual: Any, gradient: Any, counts: Any) -> None:
    """Add, and count the sum; an empty gradient means that it is already added."""
    bins = np.empty(SCAN_BLOCK, np.uint16)
    tail = residual.size - residual.size % SCAN_BLOCK
    for at in range(0, tail, SCAN_BLOCK):
        block = residual[at : at + SCAN_BLOCK]
        if gradient.size:
            _add(block, gradient[at : at + SCAN_BLOCK])
        radix.count_block(block, bins, counts)
    if gradient.size:
        _add(residual[tail:], gradient[tail:])
    radix.count_tail(residual[tail:], 0, counts)


@kernel
def count_with_energy(gradient: Any, counts: Any) -> float:
    """Count a gradient, and return its energy."""
    bins = np.empty(SCAN_BLOCK, np.uint16)
    buffer = np.empty(SCAN_BLOCK, np.float32)
    energy = 0.0
    tail = gradient.size - gradient.size % SCAN_BLOCK
    for at in range(0, tail, SCAN_BLOCK):
        block = widened(gradient[at : at + SCAN_BLOCK], buffer)
        radix.count_block(block, bins, counts)
        energy += energy_of(block)
    last = widened(gradient[tail:], buffer)
    radix.count_tail(last, 0, counts)
    return energy + energy_of(last)


@kernel
def accumulate_and_count_both(residual: Any, gradient: Any, counts: Any) -> tuple[float, float]:
    """Add the gradient; count it in column 0 and the sum in column 1; return the energies of both."""
    bins = np.empty(2 * SCAN_BLOCK, np.uint16)
    buffer = np.empty(SCAN_BLOCK, np.float32)
    gradient_energy, sum_energy = 0.0, 0.0
    tail = residual.size - residual.size % SCAN_BLOCK
    for at in range(0, tail, SCAN_BLOCK):
        block = residual[at : at + SCAN_BLOCK]
        added = widened(gradient[at : at + SCAN_BLOCK], buffer)
        _add(block, added)
        gradient_energy += energy_of(added)
        sum_energy += energy_of(block)
        radix.count_two_blocks(added, block, bins, counts)
    block, added = residual[tail:], widened(gradient[tail:], buffer)
    _add(block, added)
    radix.count_tail(added, 0, counts)
    radix.count_tail(block, 1, counts)
    return gradient_energy + energy_of(added), sum_energy + energy_of(block)


@kernel
def drop_nonfinite(residual: Any) -> None:
    """Set Inf and NaN to zero."""
    for i in range(residual.size):
        if (float_bits(residual[i]) & KEY_MASK) >= INF_KEY:
            residual[i] = np.float32(0)
