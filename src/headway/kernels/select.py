"""Exact top-k by magnitude, from candidates.

A selection collects every entry that reaches some threshold not above the true one: a list of candidates in index
order for each chunk of the array. The lists are then trimmed to exactly the top k, which touches candidates only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.kernels import device, radix
from headway.kernels._jit import kernel
from headway.kernels._lanes import NAN_KEY, ROOM, RUN, collect, compact
from headway.kernels._threads import chunks, run
from headway.kernels.arrays import check_k, fits_int32, flat_float32, index_dtype, uses_torch
from headway.kernels.radix import Bin, Cut, clamped_key

Offsets = npt.NDArray[np.int32]
Values = npt.NDArray[np.float32]

SMALLEST_KEY = np.uint32(1)
"""The lowest threshold in use. Only zeros are below it, and those need not be collected."""

_SECTION = 4096
"""Number of candidates trimmed together, so that they stay in cache between the two loops that read them."""


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
        return torch.empty(0, dtype=index_dtype(x.numel()), device=x.device)
    if uses_torch(x):
        return device.select_topk(x, k)
    flat = flat_float32(x)
    parts = chunks(flat.size)
    counts = [radix.new_counts() for _ in parts]
    run(lambda number, part: radix.count(flat[part], counts[number]), parts)
    return torch.from_numpy(Buffers().pick_counted(flat, parts, counts, k, clear=False).indices)


class Candidates(NamedTuple):
    """The candidates of one chunk: offsets from its start, and values."""

    start: int
    offsets: Offsets
    values: Values


class Picked(NamedTuple):
    """The top k in index order, and the key of the smallest."""

    indices: npt.NDArray[Any]
    values: Values
    key: np.uint32


class Buffers:
    """Room for candidates and counts, kept between steps and grown when needed."""

    def __init__(self) -> None:
        self._offsets = np.empty(ROOM, np.int32)
        self._values = np.empty(ROOM, np.float32)
        self._counts = radix.new_counts()

    def reserve(self, parts: Sequence[slice], limit: int) -> list[tuple[Offsets, Values]]:
        """Return room for up to ``limit`` candidates in each part; pages that stay untouched cost no memory."""
        sizes = [min(part.stop - part.start, limit) + ROOM for part in parts]
        ends = np.cumsum(sizes)
        if self._offsets.size < ends[-1]:
            self._offsets = np.empty(int(ends[-1]), np.int32)
            self._values = np.empty(int(ends[-1]), np.float32)
        return [
            (self._offsets[end - size : end], self._values[end - size : end])
            for size, end in zip(sizes, ends, strict=True)
        ]

    def pick_counted(
        self, source: Values, parts: Sequence[slice], counts: Sequence[radix.Counts], k: int, *, clear: bool
    ) -> Picked:
        """Return the exact top k of ``source``, given a histogram of each part; with ``clear``, clear it there."""
        inside = radix.find_bin(radix.total(counts), k)
        key = max(inside.key, SMALLEST_KEY)
        rooms = self.reserve(parts, inside.num_above + inside.num_inside)

        def find(number: int, part: slice) -> Candidates:
            offsets, values = rooms[number]
            num_found = collect(source[part], key, clear, offsets, values)
            return Candidates(part.start, offsets[:num_found], values[:num_found])

        return self.pick(run(find, parts), k, source, clear=clear, inside=inside)

    def pick(
        self,
        found: Sequence[Candidates],
        k: int,
        source: Values,
        *,
        clear: bool,
        inside: Bin | None = None,
        from_key: np.uint32 | None = None,
    ) -> Picked:
        """Return the exact top k of ``source``, given all its entries from some threshold on.

        With fewer than k candidates the threshold must have been ``SMALLEST_KEY``: zeros fill the rest. With
        ``clear`` the candidates were cleared in the source, and those that are not picked go back. Pass either the
        bin of the k-th largest (``inside``) or the threshold that all candidates reach (``from_key``), which is
        probably just below it. The result lives in these buffers.
        """
        num_found = sum(part.values.size for part in found)
        end = Cut(np.uint32(0), 0, 0)
        if num_found >= k:
            end = self._find_cut_near(found, k, num_found, from_key) or self._find_cut(found, k, inside)
        offsets, ends = self._trim(found, end, source if clear else None)
        indices = _to_indices(offsets, ends, [part.start for part in found], source.size)
        picked = Picked(indices, self._values[: indices.size], end.key)
        return picked if num_found >= k else _fill_with_zeros(picked, k, source, clear)

    def _trim(self, found: Sequence[Candidates], end: Cut, residual: Values | None) -> tuple[Offsets, list[int]]:
        """Drop the candidates below the cut and the surplus ties; put them back into the residual, if given.

        Returns the remaining offsets, packed at the start of the buffers, and where those of each chunk end.
        """
        num_kept, ties_in = 0, end.num_ties_in
        ends = []
        for part in found:
            size = part.values.size
            split = size
            if end.num_ties_in < end.num_ties:
                split, ties_in = _split_after_ties(part.values, end.key, ties_in)
            back = part.values[:0] if residual is None else residual[part.start :]
            for start, stop, key in ((0, split, end.key), (split, size, _next_key(end.key))):
                num_kept = _trim_range(
                    part.values, part.offsets, start, stop, key, back, self._offsets, self._values, num_kept
                )
            ends.append(num_kept)
        return self._offsets[:num_kept], ends

    def _find_cut_near(
        self, found: Sequence[Candidates], k: int, num_found: int, from_key: np.uint32 | None
    ) -> Cut | None:
        """Look for the end of the top k just above the threshold, in one pass over the candidates."""
        if from_key is None:
            return None
        counts = self._counts.reshape(-1)
        counts[:] = 0
        num_near = sum(radix.count_near(part.values, from_key, counts) for part in found)
        k_near = k - (num_found - num_near)
        return radix.find_cut_near(counts, int(from_key), k_near) if k_near > 0 else None

    def _find_cut(self, found: Sequence[Candidates], k: int, inside: Bin | None) -> Cut:
        if inside is None:
            self._counts[:] = 0
            for part in found:
                radix.count(part.values, self._counts)
            inside = radix.find_bin(self._counts, k)
        low_counts = self._counts.reshape(-1)
        low_counts[:] = 0
        for part in found:
            radix.count_low_bits(part.values, np.uint32(inside.number), low_counts)
        return radix.find_cut(low_counts, inside, k)


def restore(found: Sequence[Candidates], residual: Values) -> None:
    """Put all candidates back into the residual they were taken from."""
    for part in found:
        residual[part.start :][part.offsets] = part.values


def _to_indices(offsets: Offsets, ends: Sequence[int], starts: Sequence[int], numel: int) -> npt.NDArray[Any]:
    """Turn offsets from the start of a chunk into indices: in place, unless they need int64."""
    if len(starts) == 1 and fits_int32(numel):
        return offsets
    indices = offsets if fits_int32(numel) else np.empty(offsets.size, np.int64)
    for begin, end, start in zip([0, *ends], ends, starts, strict=False):
        np.add(offsets[begin:end], np.int64(start), out=indices[begin:end], casting="same_kind")
    return indices


def _next_key(key: np.uint32) -> np.uint32:
    """Return the next larger key, which ties with ``key`` do not reach; nothing is above NaN."""
    return np.uint32(key + 1) if key < NAN_KEY else np.uint32(0xFFFFFFFF)


@kernel
def _split_after_ties(values: Any, key: Any, ties_in: int) -> tuple[int, int]:
    """Return the position after the last tie to keep, and how many ties later chunks still have to supply."""
    for i in range(values.size):
        if ties_in == 0:
            return i, 0
        ties_in -= clamped_key(values[i]) == key
    return values.size, ties_in


@kernel
def _put_back_range(values: Any, offsets: Any, start: int, stop: int, key: Any, residual: Any) -> None:
    for i in range(start, stop):
        if clamped_key(values[i]) < key:
            residual[offsets[i]] = values[i]


@kernel
def _put_back(values: Any, offsets: Any, start: int, stop: int, key: Any, residual: Any) -> None:
    """Put back into the residual what does not reach the key; that is rare, so runs are tested as a whole."""
    tail = stop - (stop - start) % RUN
    for at in range(start, tail, RUN):
        some = values[at : at + RUN]
        hits = np.uint32(0)
        for i in range(RUN):
            hits |= np.uint32(clamped_key(some[i]) < key)
        if hits:
            _put_back_range(values, offsets, at, at + RUN, key, residual)
    _put_back_range(values, offsets, tail, stop, key, residual)


@kernel
def _trim_range(
    values: Any, offsets: Any, start: int, stop: int, key: Any, back: Any, kept_offsets: Any, kept: Any, count: int
) -> int:
    """Append what reaches the key and return the new count; put the rest into ``back``, unless that is empty."""
    for at in range(start, stop, _SECTION):
        end = min(at + _SECTION, stop)
        if back.size:
            _put_back(values, offsets, at, end, key, back)
        count = compact(values, offsets, at, end, key, kept_offsets, kept, count)
    return count


def _fill_with_zeros(nonzero: Picked, k: int, source: Values, clear: bool) -> Picked:
    indices = np.empty(k, nonzero.indices.dtype)
    values = np.empty(k, np.float32)
    _merge_zeros(nonzero.indices, nonzero.values, source, clear, indices, values)
    return Picked(indices, values, np.uint32(0))


@kernel
def _merge_zeros(nonzero: Any, nonzero_values: Any, source: Any, clear: bool, indices: Any, values: Any) -> None:
    """Merge all non-zero entries with the first zeros, in index order: every other index is a zero."""
    zeros_left = indices.size - nonzero.size
    taken = 0
    candidate = 0
    for written in range(indices.size):
        if taken < nonzero.size and (nonzero[taken] == candidate or zeros_left == 0):
            candidate = nonzero[taken]
            values[written] = nonzero_values[taken]
            taken += 1
        else:
            values[written] = source[candidate]  # zero, but of either sign
            if clear:
                source[candidate] = np.float32(0)
            zeros_left -= 1
        indices[written] = candidate
        candidate += 1
