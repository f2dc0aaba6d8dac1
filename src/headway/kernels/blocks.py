"""What codes are made of: the scale of a block, and codes of a few bits packed into bytes; on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.kernels._jit import bits_float, float_bits, kernel, reassociating
from headway.kernels._lanes import INF_KEY, KEY_MASK


@kernel
def largest_magnitude(block: Any) -> Any:
    """Return max |x|, or NaN if any entry is Inf or NaN."""
    largest = np.uint32(0)
    for i in range(block.size):
        largest = max(largest, float_bits(block[i]) & KEY_MASK)
    return np.float32(np.nan) if largest >= INF_KEY else bits_float(np.uint32(largest))


@reassociating
def _sum_of_magnitudes(block: Any) -> float:
    total = 0.0
    for i in range(block.size):
        total += np.float64(abs(block[i]))
    return total


@kernel
def mean_magnitude(block: Any) -> Any:
    """Return the mean of |x|, or NaN if any entry is Inf or NaN."""
    if np.isnan(largest_magnitude(block)):
        return np.float32(np.nan)
    return np.float32(_sum_of_magnitudes(block) / block.size)


@kernel
def pack(codes: Any, bits: int, packed: Any) -> None:
    """Fill ``packed``, the first code in the lowest bits; written out, so that the loops vectorise."""
    num_bytes = codes.size * bits // 8
    if bits == 4:
        for i in range(num_bytes):
            packed[i] = codes[2 * i] | (codes[2 * i + 1] << 4)
    elif bits == 2:
        for i in range(num_bytes):
            packed[i] = codes[4 * i] | (codes[4 * i + 1] << 2) | (codes[4 * i + 2] << 4) | (codes[4 * i + 3] << 6)
    else:
        for i in range(num_bytes):
            low = codes[8 * i] | (codes[8 * i + 1] << 1) | (codes[8 * i + 2] << 2) | (codes[8 * i + 3] << 3)
            high = codes[8 * i + 4] | (codes[8 * i + 5] << 1) | (codes[8 * i + 6] << 2) | (codes[8 * i + 7] << 3)
            packed[i] = low | (high << 4)
    if num_bytes < packed.size:
        last = 0
        for i in range(num_bytes * 8 // bits, codes.size):
            last |= codes[i] << ((i * bits) % 8)
        packed[num_bytes] = last


@kernel
def unpack(packed: Any, bits: int, codes: Any) -> None:
    """Undo ``pack``."""
    num_bytes = codes.size * bits // 8
    if bits == 4:
        for i in range(num_bytes):
            codes[2 * i] = packed[i] & 15
            codes[2 * i + 1] = packed[i] >> 4
    elif bits == 2:
        for i in range(num_bytes):
            for j in range(4):
                codes[4 * i + j] = (packed[i] >> (2 * j)) & 3
    else:
        for i in range(num_bytes):
            for j in range(8):
                codes[8 * i + j] = (packed[i] >> j) & 1
    for i in range(num_bytes * 8 // bits, codes.size):
        codes[i] = (packed[num_bytes] >> ((i * bits) % 8)) & ((1 << bits) - 1)
