"""Value formats: how the values of a message are encoded.

| format | bytes for k values | error of each value |
|---|---|---|
| fp32 | 4 k | none |
| fp16 | 2 k, padded to a multiple of 4 | half a unit in the last of 11 bits; finite values saturate at 65504 |
| int8 | k + 4 ceil(k / 2048), padded | at most 1/254 of the largest magnitude in its block of 2048 |
| int4 | ceil(k / 2) + 4 ceil(k / 256), padded | at most 1/14 of the largest magnitude in its block of 256 |
| sign | ceil(k / 8) + 4 ceil(k / 256), padded | its distance from the mean magnitude of its block of 256 |

Inf and NaN are preserved in fp32 and fp16. A block of codes (int8, int4, sign) that contains one decodes to NaN
throughout, so that overflow is still detected.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from headway.errors import MessageError
from headway.kernels import device
from headway.kernels._jit import HALF_INF_BITS, HALF_MAGNITUDE, float_bits, half_to_float, kernel
from headway.kernels._lanes import INF_KEY, KEY_MASK
from headway.kernels.arrays import (
    SCALE_BLOCK,
    SMALLEST_NORMAL,
    as_array,
    check_buffer,
    check_message,
    padded,
    uses_torch,
)
from headway.kernels.blocks import largest_magnitude, mean_magnitude, pack, unpack

ValueFormat = Literal["fp32", "fp16", "int8", "int4", "sign"]
VALUE_FORMATS: tuple[ValueFormat, ...] = get_args(ValueFormat)


class Code(NamedTuple):
    """Integers from 0 for -levels to 2 levels for +levels, relative to the largest magnitude of a block.

    One bit is 0 for negative values and 1 for all others, and the block has its mean magnitude.
    """

    bits: int
    block: int

    @property
    def levels(self) -> int:
        """How many steps there are from zero to the largest magnitude."""
        return (1 << (self.bits - 1)) - 1

    def num_scale_bytes(self, k: int) -> int:
        """Return the bytes of the scales of k values, which come before their codes."""
        return 4 * -(-k // self.block)

    def num_bytes(self, k: int) -> int:
        """Return the bytes of k values, with their scales."""
        return padded(self.num_scale_bytes(k) + -(-k * self.bits // 8))


CODES: Mapping[str, Code] = MappingProxyType({"int8": Code(8, SCALE_BLOCK), "int4": Code(4, 256), "sign": Code(1, 256)})


def value_bytes(k: int, value_format: ValueFormat) -> int:
    """Return the length of k values on the wire, a multiple of 4.

    >>> [value_bytes(1000, name) for name in VALUE_FORMATS]
    [4000, 2000, 1004, 516, 144]
    """
    if value_format == "fp32":
        return 4 * k
    if value_format == "fp16":
        return padded(2 * k)
    if value_format in CODES:
        return CODES[value_format].num_bytes(k)
    raise ValueError(f"value format is {value_format!r}, but must be one of {', '.join(VALUE_FORMATS)}")


def encode_values(values: Tensor, value_format: ValueFormat, *, out: Tensor) -> None:
    """Write float32 values in their format into ``out``, which has ``value_bytes`` bytes."""
    k = values.numel()
    check_message(out, value_bytes(k, value_format), "out")
    check_buffer(values, torch.float32, k, "values")
    out[-4:].zero_()  # the padding
    if uses_torch(values):
        device.encode_values(values, value_format, out)
    elif value_format == "fp32":
        out.view(torch.float32).copy_(values)
    elif value_format == "fp16":
        out.view(torch.float16)[:k].copy_(values)
        _saturate(as_array(values), as_array(out).view(np.uint16))
    else:
        code = CODES[value_format]
        scales, packed = _parts(out, code, k)
        codes = packed if code.bits == 8 else np.empty(k, np.uint8)
        if code.bits == 1:
            _encode_signs(as_array(values), scales, codes, code.block)
        else:
            _encode(as_array(values), scales, codes, np.float32(code.levels), code.block)
        if code.bits < 8:
            pack(codes, code.bits, packed)


def decode_values(payload: Tensor, k: int, value_format: ValueFormat, *, out: Tensor) -> None:
    """Read k values into the float32 tensor ``out``.

    Raises:
        MessageError: The payload does not have the length of k values in this format.
    """
    num_bytes = value_bytes(k, value_format)
    if payload.numel() != num_bytes:
        raise MessageError(f"{payload.numel()} bytes of values, but {k} values in {value_format} take {num_bytes}")
    check_message(payload, num_bytes, "payload")
    check_buffer(out, torch.float32, k, "out")
    if uses_torch(payload):
        device.decode_values(payload, value_format, out)
    else:
        decode_payload(as_array(payload), *bits_and_block(value_format), as_array(out))


def bits_and_block(value_format: ValueFormat) -> tuple[int, int]:
    """Return the bits of a value and the number of values that share a scale, 0 if none do, for ``decode_payload``."""
    return (32, 0) if value_format == "fp32" else (16, 0) if value_format == "fp16" else CODES[value_format]


def _parts(payload: Tensor, code: Code, k: int) -> tuple[Any, Any]:
    """Return the scales and the bytes of the codes."""
    raw, start = as_array(payload), code.num_scale_bytes(k)
    return raw[:start].view(np.float32), raw[start : start + -(-k * code.bits // 8)]


@kernel
def _saturate(values: Any, halves: Any) -> None:
    """Replace each Inf that a finite value overflowed to by the largest finite number."""
    for i in range(values.size):
        overflowed = (halves[i] & HALF_MAGNITUDE) == HALF_INF_BITS and (float_bits(values[i]) & KEY_MASK) < INF_KEY
        halves[i] -= np.uint16(overflowed)  # the largest finite number is one bit pattern below Inf


@kernel
def _encode(values: Any, scales: Any, codes: Any, levels: Any, block_size: int) -> None:
    for number in range(scales.size):
        block = values[number * block_size : (number + 1) * block_size]
        target = codes[number * block_size : (number + 1) * block_size]
        scale = largest_magnitude(block)
        if scale < SMALLEST_NORMAL * levels:  # levels / scale would overflow: the block is sent as zeros
            scale = np.float32(0)
        scales[number] = scale
        if scale > 0:
            inverse = levels / scale
            for i in range(block.size):
                target[i] = np.uint8(np.rint(block[i] * inverse) + levels)
        else:
            target[:] = np.uint8(levels)


@kernel
def _encode_signs(values: Any, scales: Any, codes: Any, block_size: int) -> None:
    for number in range(scales.size):
        scales[number] = mean_magnitude(values[number * block_size : (number + 1) * block_size])
    for i in range(values.size):
        codes[i] = values[i] >= 0


@kernel
def decode_payload(payload: Any, bits: int, block_size: int, out: Any) -> None:
    """Fill ``out`` from a payload that has the bytes for it."""
    if bits == 32:
        out[:] = payload.view(np.float32)
    elif bits == 16:
        halves = payload.view(np.uint16)
        for i in range(out.size):
            out[i] = half_to_float(halves[i])
    else:
        num_scale_bytes = 4 * -(-out.size // block_size)
        codes = payload[num_scale_bytes:][: out.size]
        if bits < 8:
            codes = np.empty(out.size, np.uint8)
            unpack(payload[num_scale_bytes:], bits, codes)
        _decode(payload[:num_scale_bytes].view(np.float32), codes, bits, block_size, out)


@kernel
def _decode(scales: Any, codes: Any, bits: int, block_size: int, out: Any) -> None:
    """Block by block: a division for every value to find its scale would take longer than all else."""
    levels = np.float32((1 << (bits - 1)) - 1)
    for number in range(scales.size):
        scale, block = scales[number], codes[number * block_size : (number + 1) * block_size]
        target = out[number * block_size : (number + 1) * block_size]
        if bits == 1:
            for i in range(block.size):
                target[i] = scale if block[i] else -scale
        else:
            for i in range(block.size):
                target[i] = (np.float32(block[i]) - levels) / levels * scale
