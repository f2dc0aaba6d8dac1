"""Stochastic quantisers with packed bits, which are unbiased; and sign with mean magnitude.

A value becomes ``code = floor(x / d + zero + u)``, u uniform in [0, 1), and decodes to ``(code - zero) * d``: its
expectation is x, and a value of the grid is unchanged. Codes have 8, 4, 2 or 1 bits:

| bits | Q | zero | values |
|---|---|---|---|
| 8, 4, 2 | 2^(bits-1) - 1 | 2^(bits-1) | -Q d ... 0 ... Q d; zero stays zero |
| 1 | 1/2 | 1/2 | -d/2, d/2 |

With a scale (``step=None``) each block of 2048 has its own d = max|x| / Q, sent along as fp32. With a fixed absolute
step d is the same everywhere and only codes are sent, but values beyond Q d saturate.

The error of a scaled quantiser is relative to the block's largest entry; that of a fixed step is absolute, which
extrapolation (ECD) requires.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.errors import MessageError
from headway.kernels import device
from headway.kernels._jit import kernel
from headway.kernels._threads import chunks, run
from headway.kernels.arrays import SCALE_BLOCK as BLOCK
from headway.kernels.arrays import (
    SMALLEST_NORMAL,
    as_array,
    check_buffer,
    check_message,
    flat_float32,
    padded,
    uses_torch,
)
from headway.kernels.blocks import largest_magnitude, mean_magnitude, pack, unpack
from headway.kernels.noise import MASK_64, block_key, unit

BITS = (8, 4, 2, 1)

_LARGEST_STEP = float(np.finfo(np.float32).max) / 128


def quantized_bytes(numel: int, bits: int, *, step: float | None = None) -> int:
    """Return the length of a quantised tensor on the wire, a multiple of 4.

    >>> quantized_bytes(4096, 4), quantized_bytes(4096, 4, step=0.1)
    (2056, 2048)
    """
    _check(bits, step)
    num_scales = -(-numel // BLOCK) if step is None else 0
    return 4 * num_scales + padded(-(-numel * bits // 8))


def quantize(x: Tensor, bits: int, key: int, *, step: float | None = None, out: Tensor) -> int:
    """Write the codes of ``x`` into ``out``, which has ``quantized_bytes`` bytes; return how many values saturated.

    ``key`` comes from ``noise_key(seed, step, rank)``. A scaled block with an Inf or NaN decodes to NaN throughout.
    With a fixed step Inf saturates and NaN becomes zero; both are counted.

    **Cost**: two reads of x from cache, one from memory. **Error**: unbiased, except for saturated values; the variance
    of a value is at most d²/4.
    """
    check_message(out, quantized_bytes(x.numel(), bits, step=step), "out")
    out[-4:].zero_()  # the padding
    if uses_torch(x):
        return device.quantize(x, bits, key, step, out)
    flat = flat_float32(x)
    scales, codes = _parts(as_array(out), flat.size, step)
    fixed = np.float32(0 if step is None else step)

    def work(_: int, part: slice) -> int:
        first, part_scales, part_codes = _of_part(part, bits, scales, codes)
        return _quantize(flat[part], bits, np.uint64(key & MASK_64), first, fixed, part_scales, part_codes)

    return sum(run(work, chunks(flat.size)))


def quantize_sign(x: Tensor, *, out: Tensor) -> None:
    """Write sign(x) times the mean magnitude of its block, one bit per value; ``dequantize`` with ``bits=1`` reads it.

    **Error**: biased; a contraction, |C(x) - x|² = (1 - |x|₁² / (n |x|²)) |x|² in each block of n. Zero counts as
    positive. A block with an Inf or NaN decodes to NaN throughout.
    """
    check_message(out, quantized_bytes(x.numel(), 1), "out")
    out[-4:].zero_()  # the padding
    if uses_torch(x):
        device.quantize_sign(x, out)
        return
    flat = flat_float32(x)
    scales, codes = _parts(as_array(out), flat.size, None)

    def work(_: int, part: slice) -> None:
        _first, part_scales, part_codes = _of_part(part, 1, scales, codes)
        _quantize_sign(flat[part], part_scales, part_codes)

    run(work, chunks(flat.size))


def dequantize(message: Tensor, bits: int, *, step: float | None = None, out: Tensor) -> None:
    """Decode a quantised tensor into the float32 tensor ``out``.

    Raises:
        MessageError: The message does not have the length of ``out.numel()`` values.
    """
    num_bytes = quantized_bytes(out.numel(), bits, step=step)
    if message.numel() != num_bytes:
        raise MessageError(
            f"{message.numel()} bytes of codes, but {out.numel()} values of {bits} bits take {num_bytes}"
        )
    check_message(message, num_bytes, "message")
    check_buffer(out, torch.float32, out.numel(), "out")
    if uses_torch(message):
        device.dequantize(message, bits, step, out)
        return
    target = as_array(out)
    scales, codes = _parts(as_array(message), target.size, step)
    fixed = np.float32(0 if step is None else step)

    def work(_: int, part: slice) -> None:
        _first, part_scales, part_codes = _of_part(part, bits, scales, codes)
        _dequantize(part_scales, part_codes, bits, fixed, target[part])

    run(work, chunks(target.size))


def check_bits(bits: int) -> None:
    """Raise unless there is a quantiser of so many bits."""
    if bits not in BITS:
        raise ValueError(f"bits is {bits}, but must be one of {', '.join(map(str, BITS))}")


def _check(bits: int, step: float | None) -> None:
    check_bits(bits)
    if step is not None and not float(SMALLEST_NORMAL) <= step <= _LARGEST_STEP:
        raise ValueError(f"step is {step}, but must be a positive finite number of type float32")


def _parts(message: npt.NDArray[np.uint8], numel: int, step: float | None) -> tuple[Any, Any]:
    num_scale_bytes = 4 * -(-numel // BLOCK) if step is None else 0
    return message[:num_scale_bytes].view(np.float32), message[num_scale_bytes:]


def _of_part(part: slice, bits: int, scales: Any, codes: Any) -> tuple[int, Any, Any]:
    """Return the number of the first block of a chunk, and its scales and codes; chunks start at block boundaries."""
    first, last = part.start // BLOCK, -(-part.stop // BLOCK)
    return first, scales[first:last], codes[part.start * bits // 8 : -(-part.stop * bits // 8)]


@kernel
def grid_zero(bits: int) -> Any:
    """Return the code of zero; a half where zero is between two codes."""
    return np.float32(0.5) if bits == 1 else np.float32(1 << (bits - 1))


@kernel
def half_range(bits: int) -> Any:
    """Return Q: the grid reaches from -Q to Q steps."""
    return np.float32(0.5) if bits == 1 else np.float32((1 << (bits - 1)) - 1)


@kernel
def _encode_block(block: Any, inverse: Any, bits: int, mixed_key: Any, codes: Any) -> None:
    levels = half_range(bits)
    offset = np.floor(grid_zero(bits))
    shift = grid_zero(bits) - offset
    low_key, high_key = np.uint32(mixed_key), np.uint32(mixed_key >> np.uint64(32))
    for i in range(block.size):
        value = block[i] if block[i] == block[i] else np.float32(0)
        level = min(max(value * inverse, -levels), levels) + shift
        below = np.floor(level)
        # u < rest rather than floor(level + zero + u): a sum of that size would round u, and change exact values.
        goes_up = np.float32(unit(low_key, high_key, i) < level - below)
        codes[i] = np.uint8(np.int32(offset + below + goes_up))


@kernel
def _count_saturated(block: Any, limit: Any) -> int:
    """Count the values that are beyond the limit or NaN."""
    count = 0
    for i in range(block.size):
        count += not abs(block[i]) <= limit
    return count


@kernel
def _quantize(x: Any, bits: int, key: Any, first_block: int, fixed: Any, scales: Any, packed: Any) -> int:
    buffer = np.empty(BLOCK, np.uint8)
    levels = half_range(bits)
    saturated = 0
    for number in range((x.size + BLOCK - 1) // BLOCK):
        block = x[number * BLOCK : (number + 1) * BLOCK]
        target = packed[number * BLOCK * bits // 8 : (number + 1) * BLOCK * bits // 8]
        codes = target if bits == 8 else buffer[: block.size]
        if fixed > 0:
            inverse = np.float32(1) / fixed
            saturated += _count_saturated(block, fixed * levels)
        else:
            scale = largest_magnitude(block)
            if scale < SMALLEST_NORMAL * levels:
                scale = np.float32(0)
            scales[number] = scale
            inverse = levels / scale if scale > 0 else np.float32(0)
        if inverse > 0:
            _encode_block(block, inverse, bits, block_key(key, first_block + number), codes)
        else:  # all zero, or not finite: only the scale matters
            codes[:] = np.uint8(grid_zero(bits))
        if bits < 8:
            pack(codes, bits, target)
    return saturated


@kernel
def _quantize_sign(x: Any, scales: Any, packed: Any) -> None:
    codes = np.empty(BLOCK, np.uint8)
    for number in range(scales.size):
        block = x[number * BLOCK : (number + 1) * BLOCK]
        scales[number] = mean_magnitude(block)
        for i in range(block.size):
            codes[i] = block[i] >= 0
        pack(codes[: block.size], 1, packed[number * BLOCK // 8 : (number + 1) * BLOCK // 8])


@kernel
def _dequantize(scales: Any, packed: Any, bits: int, fixed: Any, out: Any) -> None:
    buffer = np.empty(BLOCK, np.uint8)
    zero, levels = grid_zero(bits), half_range(bits)
    for number in range((out.size + BLOCK - 1) // BLOCK):
        block = out[number * BLOCK : (number + 1) * BLOCK]
        source = packed[number * BLOCK * bits // 8 : (number + 1) * BLOCK * bits // 8]
        codes = source if bits == 8 else buffer[: block.size]
        if bits < 8:
            unpack(source, bits, codes)
        scale = fixed * levels if fixed > 0 else scales[number]
        for i in range(block.size):
            block[i] = (np.float32(codes[i]) - zero) / levels * scale
