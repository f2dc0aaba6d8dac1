"""Codes of 4, 2 or 1 bits in bytes, the first code in the lowest bits; written out, so that the loops vectorise."""

from __future__ import annotations

from typing import Any

from headway.kernels._jit import kernel


@kernel
def pack(codes: Any, bits: int, packed: Any) -> None:
    """Fill ``packed``, as many bytes as the codes take."""
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
