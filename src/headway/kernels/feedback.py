"""The passes over gradient and residual that ``memory`` is made of.

Each can leave what the residual was before in ``saved``: the gradient's own array if that is of float32, another array
of float32 if the gradient is narrower, or an empty one to save nothing. An empty gradient has already been added; then
nothing is saved either.

With momentum correction (see ``velocity``) the ``motion`` has a velocity, which advances in the same pass, and is what
is added; then the residual is always saved.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from headway.kernels import radix
from headway.kernels._jit import float_bits, kernel, reassociating, widen, widened
from headway.kernels._lanes import INF_KEY, KEY_MASK, ROOM, SCAN_BLOCK, collect_block, collect_tail
from headway.kernels.velocity import Motion


@kernel
def part_of(motion: Any, at: int, end: int) -> Any:
    """Return a block of a motion."""
    return Motion(motion.velocity[at:end], motion.before[at:end], motion.factor, motion.is_nesterov)


@kernel
def _add(residual: Any, gradient: Any) -> None:
    for i in range(residual.size):
        residual[i] += widen(gradient[i])


def _add_saving(residual: Any, gradient: Any, saved: Any) -> None:
    """Add a block, and leave what the residual was in ``saved``, which is the gradient itself if that is float32."""
    raise NotImplementedError


@overload(_add_saving, strict=False)  # type: ignore[untyped-decorator]
def _add_saving_of(residual: Any, gradient: Any, saved: Any) -> Any:
    def swap(residual: Any, gradient: Any, saved: Any) -> None:
        for i in range(residual.size):
            before = residual[i]
            residual[i] = before + gradient[i]
            gradient[i] = before

    def move(residual: Any, gradient: Any, saved: Any) -> None:
        for i in range(residual.size):
            before = residual[i]
            saved[i] = before
            residual[i] = before + widen(gradient[i])

    return swap if gradient.dtype == types.float32 else move


def _add_velocity(residual: Any, gradient: Any, saved: Any, motion: Any) -> None:
    """Advance the velocity of a block and add it; leave what residual and velocity were."""
    raise NotImplementedError


@overload(_add_velocity, strict=False)  # type: ignore[untyped-decorator]
def _add_velocity_of(residual: Any, gradient: Any, saved: Any, motion: Any) -> Any:
    def swap(residual: Any, gradient: Any, saved: Any, motion: Any) -> None:
        velocity, before, factor = motion.velocity, motion.before, motion.factor
        for i in range(residual.size):
            g, u, v = gradient[i], velocity[i], residual[i]
            before[i] = u
            u = factor * u + g
            velocity[i] = u
            residual[i] = v + (factor * u + g if motion.is_nesterov else u)
            gradient[i] = v

    def move(residual: Any, gradient: Any, saved: Any, motion: Any) -> None:
        velocity, before, factor = motion.velocity, motion.before, motion.factor
        for i in range(residual.size):
            g, u, v = widen(gradient[i]), velocity[i], residual[i]
            before[i] = u
            u = factor * u + g
            velocity[i] = u
            residual[i] = v + (factor * u + g if motion.is_nesterov else u)
            saved[i] = v

    return swap if gradient.dtype == types.float32 else move


@kernel
def _add_block(residual: Any, gradient: Any, saved: Any, motion: Any, at: int, end: int) -> None:
    if gradient.size and motion.velocity.size:
        _add_velocity(residual[at:end], gradient[at:end], saved[at:end], part_of(motion, at, end))
    elif gradient.size and saved.size:
        _add_saving(residual[at:end], gradient[at:end], saved[at:end])
    elif gradient.size:
        _add(residual[at:end], gradient[at:end])


@kernel
def accumulate(residual: Any, gradient: Any, saved: Any, motion: Any) -> Any:
    """Add the gradient; return the largest key of the sum, which shows whether it has Inf or NaN."""
    largest = np.uint32(0)
    if saved.size:
        for at in range(0, residual.size, SCAN_BLOCK):
            _add_block(residual, gradient, saved, motion, at, at + SCAN_BLOCK)
            block = residual[at : at + SCAN_BLOCK]
            for i in range(block.size):
                largest = max(largest, float_bits(block[i]) & KEY_MASK)
        return largest
    for i in range(residual.size):
        total = residual[i] + widen(gradient[i])
        residual[i] = total
        largest = max(largest, float_bits(total) & KEY_MASK)
    return largest


@kernel
def accumulate_and_extract(
    residual: Any, gradient: Any, saved: Any, motion: Any, key: Any, offsets: Any, found: Any
) -> tuple[int, bool]:
    """Add the whole gradient; collect and clear what reaches the key, until the buffers are full.

    An empty gradient means that it is already added. Returns the number of entries collected, and whether that is all
    of them.
    """
    num_found = 0
    tail = residual.size - residual.size % SCAN_BLOCK
    last_fit = offsets.size - ROOM
    for at in range(0, tail, SCAN_BLOCK):
        _add_block(residual, gradient, saved, motion, at, at + SCAN_BLOCK)
        if num_found <= last_fit:
            num_found = collect_block(residual, at, key, True, offsets, found, num_found)
    _add_block(residual, gradient, saved, motion, tail, residual.size)
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
def accumulate_and_count(residual: Any, gradient: Any, saved: Any, motion: Any, counts: Any) -> None:
    """Add, and count the sum; an empty gradient means that it is already added."""
    bins = np.empty(SCAN_BLOCK, np.uint16)
    tail = residual.size - residual.size % SCAN_BLOCK
    for at in range(0, tail, SCAN_BLOCK):
        _add_block(residual, gradient, saved, motion, at, at + SCAN_BLOCK)
        radix.count_block(residual[at : at + SCAN_BLOCK], bins, counts)
    _add_block(residual, gradient, saved, motion, tail, residual.size)
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
def _what_is_added(gradient: Any, saved: Any, motion: Any, buffer: Any) -> Any:
    """Return a block of what is about to be added, as float32: a copy if the residual is to be saved in its place."""
    if not saved.size:
        return widened(gradient, buffer)
    added, velocity, factor = buffer[: gradient.size], motion.velocity, motion.factor
    for i in range(gradient.size):
        added[i] = widen(gradient[i])
    if velocity.size:
        for i in range(gradient.size):
            u = factor * velocity[i] + added[i]
            added[i] = factor * u + added[i] if motion.is_nesterov else u
    return added


@kernel
def accumulate_and_count_both(
    residual: Any, gradient: Any, saved: Any, motion: Any, counts: Any
) -> tuple[float, float]:
    """Add the gradient; count what is added in column 0 and the sum in column 1; return the energies of both."""
    bins = np.empty(2 * SCAN_BLOCK, np.uint16)
    buffer = np.empty(SCAN_BLOCK, np.float32)
    added_energy, sum_energy = 0.0, 0.0
    tail = residual.size - residual.size % SCAN_BLOCK
    for at in range(0, tail, SCAN_BLOCK):
        end = at + SCAN_BLOCK
        added = _what_is_added(gradient[at:end], saved, part_of(motion, at, end), buffer)
        _add_block(residual, gradient, saved, motion, at, end)
        block = residual[at:end]
        added_energy += energy_of(added)
        sum_energy += energy_of(block)
        radix.count_two_blocks(added, block, bins, counts)
    added = _what_is_added(gradient[tail:], saved, part_of(motion, tail, residual.size), buffer)
    _add_block(residual, gradient, saved, motion, tail, residual.size)
    radix.count_tail(added, 0, counts)
    radix.count_tail(residual[tail:], 1, counts)
    return added_energy + energy_of(added), sum_energy + energy_of(residual[tail:])


@kernel
def drop_nonfinite(residual: Any) -> None:
    """Set Inf and NaN to zero."""
    for i in range(residual.size):
        if (float_bits(residual[i]) & KEY_MASK) >= INF_KEY:
            residual[i] = np.float32(0)
