"""What thousands of collectives take, on any link, in one go."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from headway.collectives import ALGORITHMS, NATIVE, Collective
from headway.network.calibrated import ingredients, overlapping_s
from headway.network.link import Link
from headway.network.overhead import Overhead

AUTO = "auto"

CollectiveKey = tuple[Collective, str, int]
"""A collective, by which algorithm ("auto" for the cheapest), and with how many bytes."""


class CollectiveTable:
    """Collectives of some ranks; each has a row, and is told apart by its key.

    What does not depend on the link is looked up once; then a link costs a few operations on whole columns.

    Args:
        keys: The collectives; those that occur more than once get one row.
        num_ranks: N.
        overhead: The machine's.

    >>> keys = [(Collective.ALL_REDUCE, "ring", 4_000), (Collective.ALL_REDUCE, "auto", 4_000)]
    >>> table = CollectiveTable(keys, 4, Overhead(message_s=0, byte_s=0))
    >>> table.seconds(Link(latency_s=1.0, bandwidth_bps=1e9)).round(2)
    array([6., 1.])
    """

    def __init__(self, keys: Iterable[CollectiveKey], num_ranks: int, overhead: Overhead) -> None:
        wanted = list(dict.fromkeys(keys))
        self.row_of = {key: row for row, key in enumerate(wanted)}
        choices = [[key] if key[1] != AUTO else _choices(key) for key in wanted]
        found = [ingredients(*key, overhead) for key in _with_ranks(choices, num_ranks)]
        self._first = np.cumsum([0] + [len(each) for each in choices[:-1]])
        self._latencies = np.array([each.latencies for each in found], dtype=np.float64)
        self._path_bytes = np.array([each.path_bytes for each in found], dtype=np.float64)
        self._overhead_s = np.array([each.overhead_s for each in found], dtype=np.float64)
        self._overlaps = np.array([each.overlaps for each in found], dtype=bool)

    def seconds(self, link: Link) -> npt.NDArray[np.float64]:
        """Return how long each takes, a row after the other."""
        a, b = self._latencies * link.latency_s, self._path_bytes * (8 / link.bandwidth_bps)
        seconds = np.where(self._overlaps, overlapping_s(a, b), a + b) + self._overhead_s
        return np.minimum.reduceat(seconds, self._first) if seconds.size else seconds


def _choices(key: CollectiveKey) -> list[CollectiveKey]:
    collective, _, num_bytes = key
    return [(collective, algorithm, num_bytes) for algorithm in (NATIVE, *ALGORITHMS[collective])]


def _with_ranks(choices: list[list[CollectiveKey]], num_ranks: int) -> Iterable[tuple[Collective, str, int, int]]:
    for each in choices:
        for collective, algorithm, num_bytes in each:
            yield collective, algorithm, num_ranks, num_bytes
