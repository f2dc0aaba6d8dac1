"""The index codec: ascending indices in a number of bytes that follows from (numel, k) alone.

| layout | how | bytes |
|---|---|---|
| bytes | blocks of 255 entries; a byte for each block's count and for each offset | ceil(numel/255) + k |
| words | blocks of 65535 entries; 16 bits for each count and offset | 2 ceil(numel/65535) + 2 k |
| plain | 32 bits per index | 4 k |

Padded to a multiple of 4 bytes. The smallest is used, and both sides can tell which one that is. At a ratio of 10% / 1%
/ 0.1% an index takes 1.04 / 1.39 / 2.03 bytes. The blocks have 255 and 65535 entries rather than 256 and 65536, because
a count may be as large as its block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headway.errors import MessageError
from headway.kernels import device
from headway.kernels._jit import kernel
from headway.kernels.arrays import (
    as_array,
    check_buffer,
    check_indices,
    check_k,
    check_message,
    fits_int32,
    index_dtype,
    padded,
    uses_torch,
)


class Layout(NamedTuple):
    """How the indices of one (numel, k) are laid out; ``block`` is 0 for plain indices."""

    block: int
    num_blocks: int
    dtype: np.dtype[Any]
    num_bytes: int


def _blocked(numel: int, k: int, block: int, dtype: type[np.unsignedinteger[Any]]) -> Layout:
    num_blocks = -(-numel // block)
    return Layout(block, num_blocks, np.dtype(dtype), padded((num_blocks + k) * np.dtype(dtype).itemsize))


def index_layout(numel: int, k: int) -> Layout:
    """Return the smallest layout; on a tie, the first one in the table above."""
    check_k(k, numel)
    layouts = [_blocked(numel, k, 255, np.uint8), _blocked(numel, k, 65535, np.uint16)]
    if fits_int32(numel):
        layouts.append(Layout(0, 0, np.dtype(np.uint32), 4 * k))
    return min(layouts, key=lambda layout: layout.num_bytes)


def index_bytes(numel: int, k: int) -> int:
    """Return the length of k indices below numel on the wire, a multiple of 4.

    >>> index_bytes(1_000_000, 10_000)
    13924
    """
    return index_layout(numel, k).num_bytes


def encode_indices(indices: Tensor, numel: int, *, out: Tensor) -> None:
    """Write strictly ascending indices below numel into ``out``, which has ``index_bytes`` bytes."""
    k = indices.numel()
    layout = index_layout(numel, k)
    check_indices(indices)
    check_buffer(indices, indices.dtype, k, "indices")
    check_message(out, layout.num_bytes, "out")
    out[-4:].zero_()  # the padding
    if uses_torch(indices):
        device.encode_indices(indices, layout, out)
        return
    source = as_array(indices)
    words = as_array(out).view(layout.dtype)
    if layout.block:
        words[: layout.num_blocks] = 0
        at = _encode(source, numel, layout.block, words[: layout.num_blocks], words[layout.num_blocks :])
    else:
        at = _first_unordered(source, numel)
        words[:] = source
    if at < k:
        raise ValueError(f"indices must ascend within [0, {numel}), but number {at} is {source[at]}")


def decode_indices(message: Tensor, numel: int, k: int, *, out: Tensor | None = None) -> Tensor:
    """Return the k indices of a message, int32 or, where numel needs it, int64.

    Everything is checked: the counts add up to k, and the indices ascend and are below numel.

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
    words, target = as_array(message).view(layout.dtype), as_array(out)
    if layout.block:
        counts, offsets = words[: layout.num_blocks], words[layout.num_blocks :]
        num_counted = int(counts.sum(dtype=np.int64))
        if num_counted != k:
            raise MessageError(f"the counts of the index blocks add up to {num_counted}, not to {k}")
        at = _decode(counts, offsets, numel, layout.block, target)
    else:
        at = _first_unordered(words, numel)
        target[:] = words
    if at < k:
        raise MessageError(f"index number {at} of {k} is out of order or not below {numel}")
    return out


@kernel
def _first_unordered(indices: Any, numel: int) -> Any:
    """Return the position of the first index that does not ascend within [0, numel), or their number if all do."""
    previous = np.int64(-1)
    for i in range(indices.size):
        index = np.int64(indices[i])
        if index <= previous or index >= numel:
            return i
        previous = index
    return indices.size


@kernel
def _encode(indices: Any, numel: int, block: int, counts: Any, offsets: Any) -> Any:
    """Fill counts and offsets up to the first unordered index; return what ``_first_unordered`` does."""
    previous = np.int64(-1)
    number = np.int64(0)
    start = np.int64(0)
    for i in range(indices.size):
        index = np.int64(indices[i])
        if index <= previous or index >= numel:
            return i
        previous = index
        if index >= start + block:
            number = index // block
            start = number * block
        counts[number] += np.uint8(1)
        offsets[i] = index - start
    return indices.size


@kernel
def _decode(counts: Any, offsets: Any, numel: int, block: int, out: Any) -> int:
    """Fill ``out``, given counts that add up to its size; return what ``_first_unordered`` does."""
    taken = 0
    for number in range(counts.size):
        start = np.int64(number) * block
        length = min(np.int64(block), numel - start)
        previous = np.int64(-1)
        for _ in range(counts[number]):
            offset = np.int64(offsets[taken])
            if offset <= previous or offset >= length:
                return taken
            previous = offset
            out[taken] = start + offset
            taken += 1
    return taken
