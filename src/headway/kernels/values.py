"""Value formats: how the values of a message are encoded.

| format | bytes for k values | error of each value |
|---|---|---|
| fp32 | 4 k | none |
| fp16 | 2 k, padded to a multiple of 4 | half a unit in the last of 11 bits; finite values saturate at 65504 |
| int8 | k + 4 ceil(k / 2048), padded | at most 1/254 of the largest magnitude in its block of 2048 |

Inf and NaN are preserved in fp32 and fp16. An int8 block that contains one decodes to NaN throughout, so that overflow
is still detected.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from headway.errors import MessageError
from headway.kernels import device
from headway.kernels._jit import HALF_INF_BITS, HALF_MAGNITUDE, bits_float, float_bits, kernel
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

ValueFormat = Literal["fp32", "fp16", "int8"]
VALUE_FORMATS: tuple[ValueFormat, ...] = get_args(ValueFormat)

_LEVELS = np.float32(127)
_SMALLEST_SCALE = SMALLEST_NORMAL * _LEVELS
"""Below it, 127 / scale overflows: the block is sent as zeros."""


def value_bytes(k: int, value_format: ValueFormat) -> int:
    """Return the length of k values on the wire, a multiple of 4.

    >>> [value_bytes(1000, name) for name in VALUE_FORMATS]
    [4000, 2000, 1004]
    """
    if value_format == "fp32":
        return 4 * k
    if value_format == "fp16":
        return padded(2 * k)
    if value_format == "int8":
        return padded(k + 4 * -(-k // SCALE_BLOCK))
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
        _encode_int8(as_array(values), *_int8_parts(as_array(out), k))


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
    elif value_format == "fp32":
        out.copy_(payload.view(torch.float32))
    elif value_format == "fp16":
        out.copy_(payload.view(torch.float16)[:k])
    else:
        _decode_int8(*_int8_parts(as_array(payload), k), as_array(out))


def _int8_parts(payload: Any, k: int) -> tuple[Any, Any]:
    num_scale_bytes = 4 * -(-k // SCALE_BLOCK)
    return payload[:num_scale_bytes].view(np.float32), payload[num_scale_bytes : num_scale_bytes + k].view(np.int8)


@kernel
def _saturate(values: Any, halves: Any) -> None:
    """Replace each Inf that a finite value overflowed to by the largest finite number."""
    for i in range(values.size):
        overflowed = (halves[i] & HALF_MAGNITUDE) == HALF_INF_BITS and (float_bits(values[i]) & KEY_MASK) < INF_KEY
        halves[i] -= np.uint16(overflowed)  # the largest finite number is one bit pattern below Inf


@kernel
def largest_magnitude(block: Any) -> Any:
    """Return max |x|, or NaN if any entry is Inf or NaN."""
    largest = np.uint32(0)
    for i in range(block.size):
        largest = max(largest, float_bits(block[i]) & KEY_MASK)
    return np.float32(np.nan) if largest >= INF_KEY else bits_float(np.uint32(largest))


@kernel
def _encode_int8(values: Any, scales: Any, codes: Any) -> None:
    for number in range(scales.size):
        block = values[number * SCALE_BLOCK : (number + 1) * SCALE_BLOCK]
        target = codes[number * SCALE_BLOCK : (number + 1) * SCALE_BLOCK]
        scale = largest_magnitude(block)
        if scale < _SMALLEST_SCALE:
            scale = np.float32(0)
        scales[number] = scale
        if scale > 0:
            inverse = _LEVELS / scale
            for i in range(block.size):
                target[i] = np.int8(np.rint(block[i] * inverse))
        else:
            target[:] = 0


@kernel
def _decode_int8(scales: Any, codes: Any, out: Any) -> None:
    for i in range(codes.size):
        out[i] = np.float32(codes[i]) / _LEVELS * scales[i // SCALE_BLOCK]
