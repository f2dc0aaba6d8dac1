"""The index codec: ascending indices in a number of bytes that follows from (numel, k) alone (Elias and Fano).

The lowest bits of every index are written as they are. What is above them never falls from one index to the next, so
a bitmap tells it: for every index in turn, a 0 for each step up, and then a 1.

    bits = k low + k + (numel - 1) >> low,   low the least with 2^(low + 1) >= numel / k

Both parts are padded to 4 bytes. At a ratio of 10% / 1% / 0.1% an index takes
0.66 / 1.07 / 1.50 bytes, where no code could do with less than 0.59 / 1.01 / 1.43 if all sets were equally likely.
Elias, Journal of the ACM 1974.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headway.errors import MessageError
from headway.kernels import device
from headway.kernels._jit import kernel, trailing_zeros
from headway.kernels.arrays import (
    as_array,
    check_buffer,
    check_indices,
    check_k,
    check_message,
    index_dtype,
    uses_torch,
)

_WORD_BITS = 32
_MOST_LOW_BITS = 31
"""So that what is left of one word and another index fit into 64 bits."""


class Layout(NamedTuple):
    """How the indices of one (numel, k) are laid out."""

    num_low_bits: int
    num_low_bytes: int
    num_bytes: int


@lru_cache(maxsize=1 << 10)
def index_layout(numel: int, k: int) -> Layout:
    """Return the layout with the fewest bits before padding."""
    k = check_k(k, numel)
    if k == 0:
        return Layout(0, 0, 0)
    low = min(max((-(-numel // k) - 1).bit_length() - 1, 0), _MOST_LOW_BITS)
    num_low_bytes = _bytes_of(k * low)
    return Layout(low, num_low_bytes, num_low_bytes + _bytes_of(k + (numel - 1 >> low)))


def _bytes_of(num_bits: int) -> int:
    return 4 * -(-num_bits // _WORD_BITS)


def index_bytes(numel: int, k: int) -> int:
    """Return the length of k indices below numel on the wire, a multiple of 4.

    >>> index_bytes(1_000_000, 10_000)
    10704
    """
    return index_layout(numel, k).num_bytes


def encode_indices(indices: Tensor, numel: int, *, out: Tensor) -> None:
    """Write strictly ascending indices below numel into ``out``, which has ``index_bytes`` bytes."""
    k = indices.numel()
    layout = index_layout(numel, k)
    check_indices(indices)
    check_buffer(indices, indices.dtype, k, "indices")
    check_message(out, layout.num_bytes, "out")
    if uses_torch(indices):
        device.encode_indices(indices, layout, out)
        return
    source, (lows, highs) = as_array(indices), _parts(out, layout)
    highs[:] = 0
    at = _encode(source, numel, layout.num_low_bits, lows, highs)
    if at < k:
        raise ValueError(f"indices must ascend within [0, {numel}), but number {at} is {source[at]}")


def decode_indices(message: Tensor, numel: int, k: int, *, out: Tensor | None = None) -> Tensor:
    """Return the k indices of a message, int32 or, where numel needs it, int64.

    Everything is checked: there are k indices, which ascend and are below numel.

    Raises:
        MessageError: A check failed. The content of ``out`` is then undefined.
    """
    layout = index_layout(numel, k)
    if message.numel() != layout.num_bytes:
        raise MessageError(f"{message.numel()} bytes of indices, but {k} indices below {numel} take {layout.num_bytes}")
    dtype = index_dtype(numel)
    out = torch.empty(k, dtype=dtype, device=message.device) if out is None else out
    check_buffer(out, dtype, k, "out")
    check_message(message, layout.num_bytes, "message")
    if uses_torch(message):
        device.decode_indices(message, numel, layout, out)
        return out
    check_decoded(*decode_words(*_parts(message, layout), numel, layout.num_low_bits, as_array(out)), k, numel)
    return out


def check_decoded(num_found: int, num_good: int, k: int, numel: int) -> None:
    """Raise `MessageError` unless ``decode_words`` has found k indices, and all of them good."""
    if num_found != k:
        raise MessageError(f"the bitmap of the indices tells of {num_found}, not of {k}")
    if num_good < k:
        raise MessageError(f"index number {num_good} of {k} is out of order or not below {numel}")


def _parts(message: Tensor, layout: Layout) -> tuple[Any, Any]:
    """Return the words of the lowest bits and those of the bitmap."""
    words = as_array(message).view(np.uint32)
    return words[: layout.num_low_bytes // 4], words[layout.num_low_bytes // 4 :]


@kernel
def _encode(indices: Any, numel: int, num_low: int, lows: Any, highs: Any) -> Any:
    """Fill both parts; return the position of the first index that does not ascend within [0, numel), or k."""
    mask = (np.uint64(1) << np.uint64(num_low)) - np.uint64(1)
    held, num_held, at = np.uint64(0), np.uint64(0), 0
    previous = np.int64(-1)
    for i in range(indices.size):
        index = np.int64(indices[i])
        if index <= previous or index >= numel:
            return i
        previous = index
        place = (index >> num_low) + i
        highs[place >> 5] |= np.uint32(1) << np.uint32(place & 31)
        held |= (np.uint64(index) & mask) << num_held
        num_held += np.uint64(num_low)
        if num_held >= np.uint64(_WORD_BITS):
            lows[at] = np.uint32(held & np.uint64(0xFFFFFFFF))
            held >>= np.uint64(_WORD_BITS)
            num_held -= np.uint64(_WORD_BITS)
            at += 1
    if num_held > np.uint64(0):
        lows[at] = np.uint32(held)
    return indices.size


@kernel
def decode_words(lows: Any, highs: Any, numel: int, num_low: int, out: Any) -> tuple[int, int]:
    """Fill ``out``; return the number of indices in the bitmap, and of those that ascend within [0, numel)."""
    mask = (np.uint64(1) << np.uint64(num_low)) - np.uint64(1)
    held, num_held, at = np.uint64(0), np.uint64(0), 0
    previous = np.int64(-1)
    num_found, num_good = 0, 0
    for number in range(highs.size):
        word = highs[number]
        while word != np.uint32(0):
            if num_found < out.size:
                if num_held < np.uint64(num_low):
                    held |= np.uint64(lows[at]) << num_held
                    num_held += np.uint64(_WORD_BITS)
                    at += 1
                high = np.int64(number) * _WORD_BITS + np.int64(trailing_zeros(word)) - num_found
                index = (high << num_low) | np.int64(held & mask)
                held >>= np.uint64(num_low)
                num_held -= np.uint64(num_low)
                if num_good == num_found and previous < index < numel:
                    num_good += 1
                previous = index
                out[num_found] = index
            word &= np.uint32(word - np.uint32(1))
            num_found += 1
    return num_found, num_good
