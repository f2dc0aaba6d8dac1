"""Exact top-k by magnitude."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.kernels import device, radix
from headway.kernels._lanes import collect
from headway.kernels._threads import chunks, run
from headway.kernels.arrays import MAX_INT32, check_k, flat_float32, uses_torch
from headway.kernels.candidates import SMALLEST_KEY, Buffers, Candidates


def select_topk(x: Tensor, k: int) -> Tensor:
    """Return the ascending indices of the k largest ``|x|``, exactly.

    Ties go to the lower index; NaN counts as larger than Inf, and all NaN as equal. The indices are int32, or int64
    where ``x`` has more entries than int32 can count; they refer to ``x`` flattened in row-major order.

    **Cost**: two reads of ``x`` (a histogram of float bits, then the collection of what reaches the bin of the k-th
    largest) and O(k) on top, for any distribution.

    >>> select_topk(torch.tensor([0.5, -3.0, 1.0, 3.0]), 2)
    tensor([1, 3], dtype=torch.int32)
    """
    k = check_k(k, x.numel())
    if k == 0:
        return torch.empty(0, dtype=torch.int64 if x.numel() > MAX_INT32 else torch.int32, device=x.device)
    if uses_torch(x):
        return device.select_topk(x, k)
    flat = flat_float32(x)
    parts = chunks(flat.size)
    inside = radix.find_bin(radix.total(run(lambda _, part: _count(flat[part]), parts)), k)
    key = max(inside.key, SMALLEST_KEY)
    buffers = Buffers()
    rooms = buffers.reserve(parts, inside.num_above + inside.num_inside)

    def find(number: int, part: slice) -> Candidates:
        offsets, values = rooms[number]
        num_found = collect(flat[part], key, False, offsets, values)
        return Candidates(part.start, offsets[:num_found], values[:num_found])

    picked = buffers.pick(run(find, parts), k, flat, clear=False, inside=inside)
    return torch.from_numpy(picked.indices)


def _count(x: Any) -> radix.Counts:
    counts = radix.new_counts()
    radix.count(x, counts)
    return counts
