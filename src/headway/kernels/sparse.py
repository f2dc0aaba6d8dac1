"""Sparse messages: k indices, and then the values that belong there."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.errors import MessageError
from headway.kernels._jit import kernel
from headway.kernels.arrays import as_array, check_buffer, check_message, fits_int32, uses_torch
from headway.kernels.indices import check_decoded, decode_indices, decode_words, index_bytes, index_layout
from headway.kernels.scatter import add_at, scatter_add
from headway.kernels.values import ValueFormat, bits_and_block, decode_payload, decode_values, value_bytes


def message_bytes(numel: int, k: int, value_format: ValueFormat) -> int:
    """Return the length of a message with k of numel entries, a multiple of 4.

    >>> message_bytes(1_000_000, 10_000, "int8")
    20724
    """
    return index_bytes(numel, k) + value_bytes(k, value_format)


def add_message(message: Tensor, k: int, value_format: ValueFormat, *, out: Tensor) -> None:
    """Decode a message with k entries and add them to the float32 tensor ``out``, where all indices must be.

        out[indices[i]] += values[i],  i = 0 ... k - 1, in this order

    **Cost**: one call for decoding, checking and adding: 5 to 10 ns an entry. Called for one message after the other,
    rank 0's first, it gives the same bits everywhere.

    Raises:
        MessageError: The message has another length, or indices that are not k ascending ones within ``out``. Nothing
            of it has been added.
    """
    numel, num_bytes = out.numel(), message_bytes(out.numel(), k, value_format)
    if message.numel() != num_bytes:
        raise MessageError(f"{message.numel()} bytes, but {k} of {numel} entries as {value_format} take {num_bytes}")
    check_message(message, num_bytes, "message")
    check_buffer(out, torch.float32, numel, "out")
    if uses_torch(out):
        _add_by_torch(message, k, value_format, out)
        return
    layout = index_layout(numel, k)
    indices = np.empty(k, np.int32 if fits_int32(numel) else np.int64)
    counts = _add(as_array(message), *layout, *bits_and_block(value_format), indices, as_array(out))
    check_decoded(*counts, k, numel)


def _add_by_torch(message: Tensor, k: int, value_format: ValueFormat, out: Tensor) -> None:
    num_index_bytes = index_bytes(out.numel(), k)
    indices, values = decode_indices(message[:num_index_bytes], out.numel(), k), torch.empty(k, device=out.device)
    decode_values(message[num_index_bytes:], k, value_format, out=values)
    scatter_add(out, indices, values)


@kernel
def _add(
    message: Any, num_low: int, num_low_bytes: int, num_index_bytes: int, bits: int, block: int, indices: Any, out: Any
) -> tuple[int, int]:
    """Add a message if its indices are good; return how many of them there are, and how many of those are good."""
    lows, highs = message[:num_low_bytes].view(np.uint32), message[num_low_bytes:num_index_bytes].view(np.uint32)
    num_found, num_good = decode_words(lows, highs, out.size, num_low, indices)
    if num_found == indices.size and num_good == indices.size:
        values = np.empty(indices.size, np.float32)
        decode_payload(message[num_index_bytes:], bits, block, values)
        add_at(out, indices, values)
    return num_found, num_good
