"""From tensors to the flat arrays that loops run over, and the checks that go with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_RAW = {torch.float32: torch.float32, torch.float16: torch.uint16, torch.bfloat16: torch.int16}
"""How loops see a gradient: numba has neither half type, so fp16 comes as uint16 and bf16 as int16 (see ``half``)."""


def check_k(k: int, numel: int) -> None:
    """Raise unless k entries can be picked from numel."""
    if not 0 <= k <= numel:
        raise ValueError(f"k is {k}, but must be between 0 and the number of entries, {numel}")


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
    """Return the entries in row-major order in the form that loops read a gradient in; no copy if contiguous."""
    check_dtype(x)
    array: npt.NDArray[Any] = x.detach().reshape(-1).contiguous().view(_RAW[x.dtype]).numpy()
    return array


def writable(x: Tensor, dtype: torch.dtype, what: str) -> npt.NDArray[Any]:
    """Return the tensor's own memory as a flat array, or raise if it is not contiguous or of another type."""
    if x.dtype != dtype or not x.is_contiguous():
        raise ValueError(f"{what} must be a contiguous tensor of {dtype}, but is {x.dtype} with stride {x.stride()}")
    array: npt.NDArray[Any] = x.detach().view(-1).numpy()
    return array


def message_bytes(x: Tensor, num_bytes: int, what: str) -> npt.NDArray[np.uint8]:
    """Return a buffer for a message of exactly this length as bytes."""
    array = writable(x, torch.uint8, what)
    if array.size != num_bytes:
        raise ValueError(f"{what} has {array.size} bytes, but must have {num_bytes}")
    if array.ctypes.data % 4:
        raise ValueError(f"{what} must start at a multiple of 4 bytes")
    return array
