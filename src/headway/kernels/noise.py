"""Counter-based uniform noise: a function of (seed, step, rank, position), so that a run can be repeated.

A 64-bit key is mixed from (seed, step, rank, tensor). Each block of 2048 positions derives its own key from it, and
each position gets a 32-bit hash of its offset in the block, keyed twice. No number depends on the one before it, so the
loop uses vector registers, and any thread can compute any block.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.kernels._jit import kernel

GOLDEN_64 = 0x9E3779B97F4A7C15
GOLDEN_32 = 0x9E3779B1
MIX_1 = 0x7FEB352D
MIX_2 = 0x846CA68B
MASK_64 = (1 << 64) - 1

TO_UNIT = np.float32(2.0**-24)


def splitmix(state: int) -> int:
    """Return the splitmix64 hash of a 64-bit number."""
    mixed = (state + GOLDEN_64) & MASK_64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK_64
    return mixed ^ (mixed >> 31)


def noise_key(seed: int, step: int, rank: int, tensor: int = 0) -> int:
    """Return the key of one tensor's noise; different seeds, steps, ranks or tensors give independent noise."""
    key = 0
    for number in (seed, step, rank, tensor):
        key = splitmix(key ^ (number & MASK_64))
    return key


@kernel
def block_key(key: Any, number: int) -> Any:
    """Return the key of a block: splitmix64 of ``key + number * GOLDEN_64``."""
    mixed = np.uint64(key) + np.uint64(number) * np.uint64(GOLDEN_64) + np.uint64(GOLDEN_64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@kernel
def unit(low_key: Any, high_key: Any, position: int) -> Any:
    """Return the noise at a position of a block: uniform on the multiples of 2^-24 in [0, 1)."""
    mixed = np.uint32(np.uint32(position) * np.uint32(GOLDEN_32) + low_key)
    mixed = np.uint32((mixed ^ (mixed >> np.uint32(16))) * np.uint32(MIX_1))
    mixed = np.uint32((mixed ^ (mixed >> np.uint32(15)) ^ high_key) * np.uint32(MIX_2))
    mixed = np.uint32(mixed ^ (mixed >> np.uint32(16)))
    return np.float32(np.int32(mixed >> np.uint32(8))) * TO_UNIT
