"""Tensors as the flat arrays that loops run over, and checks of arguments."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

SCALE_BLOCK = 2048
"""Number of values that share a scale, and of positions that share a noise key."""

MAX_INT32 = int(np.iinfo(np.int32).max)
SMALLEST_NORMAL = np.float32(np.finfo(np.float32).smallest_normal)

_RAW = {torch.float32: torch.float32, torch.float16: torch.uint16, torch.bfloat16: torch.int16}
"""How loops see a gradient: numba has no half types, so fp16 is passed as uint16 and bf16 as int16 (see ``_jit``)."""

_always_torch = False


def uses_torch(x: Tensor) -> bool:
    """Return whether a tensor is processed by torch operations instead of compiled loops."""
    return _always_torch or x.device.type != "cpu"


@contextmanager
def torch_operations() -> Iterator[None]:
    """Use torch operations for CPU tensors too: tests the path of other devices on machines without them."""
    global _always_torch
    _always_torch = True
    try:
        yield
    finally:
        _always_torch = False


def check_k(k: int, numel: int) -> int:
    """Return k as an int; raise unless k entries can be picked from numel."""
    number = operator.index(k)
    if not 0 <= number <= numel:
        raise ValueError(f"k is {k}, but must be between 0 and the number of entries, {numel}")
    return number


def fits_int32(numel: int) -> bool:
    """Return whether all indices of so many entries, and their number, fit an int32."""
    return numel <= MAX_INT32


def index_dtype(numel: int) -> torch.dtype:
    """Return the type of indices into so many entries.

    >>> index_dtype(2**31 - 1), index_dtype(2**31)
    (torch.int32, torch.int64)
    """
    return torch.int32 if fits_int32(numel) else torch.int64


def padded(num_bytes: int) -> int:
    """Round up to a multiple of 4 bytes: sections of a message can then follow each other."""
    return -(-num_bytes // 4) * 4


def check_indices(indices: Tensor) -> None:
    """Raise unless the tensor has the type of indices."""
    if indices.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"indices must be int32 or int64, but are {indices.dtype}")


def check_buffer(x: Tensor, dtype: torch.dtype, numel: int, what: str) -> None:
    """Raise unless the tensor is contiguous, of this type and of this length."""
    if x.dtype != dtype or not x.is_contiguous():
        raise ValueError(f"{what} must be a contiguous tensor of {dtype}, but is {x.dtype} with stride {x.stride()}")
    if x.numel() != numel:
        unit = "bytes" if dtype == torch.uint8 else "entries"
        raise ValueError(f"{what} has {x.numel()} {unit}, but must have {numel}")


def check_message(x: Tensor, num_bytes: int, what: str) -> None:
    """Raise unless the tensor is a buffer for a message section of this length, aligned to 4 bytes."""
    check_buffer(x, torch.uint8, num_bytes, what)
    if x.data_ptr() % 4:
        raise ValueError(f"{what} must start at a multiple of 4 bytes: pad what comes before it")


def check_dtype(x: Tensor) -> None:
    """Raise unless the tensor holds one of the gradient formats."""
    if x.dtype not in _RAW:
        raise ValueError(f"dtype is {x.dtype}, but must be torch.float32, torch.float16 or torch.bfloat16")


def flat_float32(x: Tensor) -> npt.NDArray[np.float32]:
    """Return the entries in row-major order as float32: a view where that is possible, else a copy."""
    check_dtype(x)
    array: npt.NDArray[np.float32] = x.detach().reshape(-1).contiguous().to(torch.float32).numpy()
    return array


def flat_raw(x: Tensor) -> npt.NDArray[Any]:
    """Return the entries in row-major order, as loops read a gradient (see ``_RAW``); no copy if contiguous."""
    check_dtype(x)
    array: npt.NDArray[Any] = x.detach().reshape(-1).contiguous().view(_RAW[x.dtype]).numpy()
    return array


def as_array(x: Tensor) -> npt.NDArray[Any]:
    """Return the memory of a contiguous tensor as a flat array."""
    array: npt.NDArray[Any] = x.detach().view(-1).numpy()
    return array
