"""Exact order statistics of magnitudes, by counting float bits.

The key of an entry (its bits without the sign) has 31 bits. Level one counts the upper 15 of them: 8 bits of exponent
and 7 of mantissa, so that a bin spans less than 0.8% of its magnitude. Level two counts the lower 16 bits of those
entries that share the bin of interest. Two counts give the k-th largest key exactly, for any distribution.

Counting uses two interleaved histograms: in runs of equal entries (mostly zeros) each increment would otherwise wait
for the previous store. 25M entries, one thread, with the addition of the gradient and the energy: 17 ms, 26 ms when 98%
are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headway.kernels._jit import float_bits, kernel
from headway.kernels._lanes import INF_KEY, KEY_MASK, NAN_KEY, RUN, SCAN_BLOCK

BIN_SHIFT = np.uint32(16)
NUM_BINS = 1 << 15
INF_BIN = int(INF_KEY) >> 16
_LOW_BITS = np.uint32(0xFFFF)

Counts = npt.NDArray[np.uint32] | npt.NDArray[np.int64]


class Bin(NamedTuple):
    """The bin of level one that holds the k-th largest key."""

    number: int
    """Its upper 15 bits."""
    num_above: int
    """Number of entries in higher bins: all of them belong to the top k."""
    num_inside: int
    """Number of entries in this bin: some of them belong to the top k."""

    @property
    def key(self) -> np.uint32:
        """The smallest key of the bin."""
        return np.uint32(self.number << 16)


class Cut(NamedTuple):
    """The end of the top k: larger keys are in it, and of the entries with this key the first ``num_ties_in``."""

    key: np.uint32
    num_ties_in: int
    num_ties: int


def new_counts() -> npt.NDArray[np.uint32]:
    """Return the two interleaved histograms of level one."""
    return np.zeros((NUM_BINS, 2), np.uint32)


def total(parts: Sequence[Counts]) -> Counts:
    """Add up the histograms of the chunks of an array."""
    return parts[0] if len(parts) == 1 else np.asarray(np.sum(parts, axis=0, dtype=np.int64))


@kernel
def _bin_of(value: Any) -> Any:
    return np.uint16((float_bits(value) & KEY_MASK) >> BIN_SHIFT)


@kernel
def _bins_of(block: Any, bins: Any) -> None:
    for i in range(SCAN_BLOCK):
        bins[i] = _bin_of(block[i])


@kernel
def count_block(block: Any, bins: Any, counts: Any) -> None:
    """Add a block of exactly ``SCAN_BLOCK`` entries to ``counts``; ``bins`` is scratch for as many."""
    _bins_of(block, bins)
    for i in range(0, SCAN_BLOCK, 2):
        counts[bins[i], 0] += np.uint32(1)
        counts[bins[i + 1], 1] += np.uint32(1)


@kernel
def count_two_blocks(first: Any, second: Any, bins: Any, counts: Any) -> None:
    """Count one block in column 0 and another in column 1; ``bins`` is scratch for both.

    Stores to the two histograms alternate, like those to the interleaved ones, and need no more cache.
    """
    first_bins, second_bins = bins[:SCAN_BLOCK], bins[SCAN_BLOCK:]
    _bins_of(first, first_bins)
    _bins_of(second, second_bins)
    for i in range(SCAN_BLOCK):
        counts[first_bins[i], 0] += np.uint32(1)
        counts[second_bins[i], 1] += np.uint32(1)


@kernel
def count_tail(tail: Any, column: int, counts: Any) -> None:
    """Add any number of entries to a column, one by one."""
    for i in range(tail.size):
        counts[_bin_of(tail[i]), column] += np.uint32(1)


@kernel
def count(x: Any, counts: Any) -> None:
    """Add all entries of ``x`` to the histograms of level one."""
    bins = np.empty(SCAN_BLOCK, np.uint16)
    tail = x.size - x.size % SCAN_BLOCK
    for at in range(0, tail, SCAN_BLOCK):
        count_block(x[at : at + SCAN_BLOCK], bins, counts)
    count_tail(x[tail:], 0, counts)


@kernel
def _find(totals: Any, k: int) -> tuple[int, Any]:
    above = np.int64(0)
    for number in range(totals.size - 1, -1, -1):
        if above + totals[number] >= k:
            return number, above
        above += totals[number]
    return 0, above


def bin_totals(counts: Counts) -> npt.NDArray[np.int64]:
    """Return the number of entries in each bin."""
    return counts[:, 0].astype(np.int64) + counts[:, 1]


def find_bin(counts: Counts, k: int) -> Bin:
    """Return the bin that holds the k-th largest entry, 1 <= k <= number of entries."""
    totals = bin_totals(counts)
    totals[INF_BIN] = totals[INF_BIN:].sum()  # all NaN tie, and their lowest bin is that of Inf
    totals[INF_BIN + 1 :] = 0
    number, above = _find(totals, k)
    return Bin(int(number), int(above), int(totals[number]))


@kernel
def clamped_key(value: Any) -> Any:
    """Return the key of a value, which is the same for every NaN."""
    return min(float_bits(value) & KEY_MASK, NAN_KEY)


@kernel
def _count_low_bits_of(values: Any, number: Any, counts: Any) -> None:
    for i in range(values.size):
        key = clamped_key(values[i])
        if key >> BIN_SHIFT == number:
            counts[key & _LOW_BITS] += np.uint32(1)


@kernel
def count_low_bits(values: Any, number: Any, counts: Any) -> None:
    """Count the lower 16 bits of the keys whose upper 15 bits are ``number``, a uint32.

    Few are, so runs of entries are tested as a whole first.
    """
    tail = values.size - values.size % RUN
    for at in range(0, tail, RUN):
        run = values[at : at + RUN]
        hits = np.uint32(0)
        for i in range(RUN):
            hits |= np.uint32(clamped_key(run[i]) >> BIN_SHIFT == number)
        if hits:
            _count_low_bits_of(run, number, counts)
    _count_low_bits_of(values[tail:], number, counts)


@kernel
def _count_near_of(values: Any, from_key: Any, counts: Any) -> int:
    num_near = 0
    for i in range(values.size):
        distance = np.uint32(clamped_key(values[i]) - from_key)
        if distance < np.uint32(counts.size):
            counts[distance] += np.uint32(1)
            num_near += 1
    return num_near


@kernel
def count_near(values: Any, from_key: Any, counts: Any) -> int:
    """Count each key from ``from_key`` on, as far as ``counts`` reaches, and return the number of keys counted.

    No key is below ``from_key``, and most are far above: runs without a near one are skipped.
    """
    num_near = 0
    tail = values.size - values.size % RUN
    for at in range(0, tail, RUN):
        run = values[at : at + RUN]
        hits = np.uint32(0)
        for i in range(RUN):
            hits |= np.uint32(np.uint32(clamped_key(run[i]) - from_key) < np.uint32(counts.size))
        if hits:
            num_near += _count_near_of(run, from_key, counts)
    return num_near + _count_near_of(values[tail:], from_key, counts)


def find_cut_near(counts: npt.NDArray[np.uint32], from_key: int, k_near: int) -> Cut:
    """Return the end of the top k, given the counts of near keys and how many of those belong to it."""
    distance, above = _find(counts, k_near)
    return Cut(np.uint32(from_key + int(distance)), int(k_near - above), int(counts[int(distance)]))


def find_cut(low_counts: npt.NDArray[np.uint32], inside: Bin, k: int) -> Cut:
    """Return the exact end of the top k, given the bin it lies in and the counts of its lower bits."""
    low, above = _find(low_counts, k - inside.num_above)
    key = np.uint32((inside.number << 16) | int(low))
    return Cut(key, int(k - inside.num_above - above), int(low_counts[int(low)]))
