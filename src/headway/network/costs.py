"""What collectives take in practice: their own rounds and bytes, shared NICs, torch's habits, and overhead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from headway.collectives import (
    ALGORITHMS,
    AUTO,
    NATIVE,
    Collective,
    Schedule,
    build_for,
    critical_path,
    shared_payloads,
)
from headway.network.link import Link

_CALL, _ROUND, _NATIVE_ROUND = 4.0, 0.5, 1.3
"""What a call and a round cost, in messages; fitted to 400 collectives of all kinds among 8 hosts."""
_NATIVE_LIKE = {Collective.ALL_REDUCE: "ring", Collective.ALL_GATHER: "ring", Collective.BROADCAST: "tree"}
"""The schedules that Gloo's own collectives follow."""
_NATIVE_LATENCIES = 2
"""Gloo posts a receive only when it gets to it, so a round costs two latencies."""
_NATIVE_OVERLAP = 0.8
"""Gloo sends a chunk in two parts: the bytes of one hide behind the latencies of the other, though not entirely."""
_NATIVE_PAIR = 1.5
"""Payloads that Gloo's all-gather between two ranks takes, instead of the one that they exchange."""

Seconds = TypeVar("Seconds", float, npt.NDArray[np.float64])


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Where the time of an exchange goes."""

    latency_s: float
    bandwidth_s: float
    overhead_s: float
    compute_s: float = 0.0
    wire_bytes: int = 0
    """Sent by the busiest rank."""

    @property
    def seconds(self) -> float:
        """The sum of all parts."""
        return self.latency_s + self.bandwidth_s + self.overhead_s + self.compute_s


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """What the busiest rank spends on starting and finishing messages and on copying bytes.

        t = 4 m + rounds m/2 + messages m + bytes b;   torch's own collectives: rounds 1.3 m

    Args:
        message_s: m; the default is that of two processes on a machine with a core for each.
        byte_s: b, for each byte sent or received.
    """

    message_s: float = 1.3e-4
    byte_s: float = 2.5e-10

    def __post_init__(self) -> None:
        for name in ("message_s", "byte_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be 0 or more")

    def of_schedule(self, rounds: float, num_messages: int, num_bytes: float) -> float:
        """Return the overhead of a schedule, in seconds."""
        return (_CALL + _ROUND * rounds + num_messages) * self.message_s + num_bytes * self.byte_s

    def of_native(self, rounds: float) -> float:
        """Return the overhead of torch's own collective, in seconds."""
        return _NATIVE_ROUND * rounds * self.message_s

    def message_s_of(self, seconds: float, rounds: float, num_messages: int) -> float:
        """Return m, given the overhead of a schedule of small messages."""
        return seconds / (_CALL + _ROUND * rounds + num_messages)


@dataclass(frozen=True, kw_only=True)
class CollectiveCost:
    """How often a collective pays latency, how many bytes it waits for, and its overhead."""

    latencies: float
    path_bytes: float
    overhead_s: float

    def seconds(self, link: Link) -> float:
        """Return latencies α + bytes β + overhead."""
        return self.latencies * link.latency_s + self.path_bytes * 8 / link.bandwidth_bps + self.overhead_s


def collective_cost(
    collective: Collective, algorithm: str, num_ranks: int, num_bytes: int, link: Link, overhead: Overhead
) -> CollectiveCost:
    """Return the cost of a collective on a link.

    Our own algorithms: t = rounds α + payloads M β + overhead, where concurrent transfers share the NICs.
    Torch's own, as Gloo does it, with a = 2 rounds α and b = payloads M β: t = √(a² + b² + 0.8 a b) for the rings of
    all-reduce and all-gather, which hide some of one behind the other; (log N + 1) α + b for the tree of a broadcast.
    Between two ranks its all-gather takes 1.5 payloads.
    """
    terms = _terms(collective, algorithm, num_ranks, num_bytes, overhead)
    latencies, path_bytes = terms.latencies, terms.path_bytes
    if terms.overlaps:  # count what each of the two adds at the margin
        a, b = latencies * link.latency_s, path_bytes * 8 / link.bandwidth_bps
        total_s = float(_overlapping_s(a, b)) or 1.0
        latencies *= (a + _NATIVE_OVERLAP / 2 * b) / total_s
        path_bytes *= (b + _NATIVE_OVERLAP / 2 * a) / total_s
    return CollectiveCost(latencies=latencies, path_bytes=path_bytes, overhead_s=terms.overhead_s)


def cheapest_algorithm(collective: Collective, num_ranks: int, num_bytes: int, link: Link, overhead: Overhead) -> str:
    """Return the algorithm that takes the least time, torch's own included.

    >>> near = Link(latency_s=1e-4, bandwidth_bps=1e10)
    >>> cheapest_algorithm(Collective.ALL_REDUCE, 4, 4_000_000, near, Overhead())
    'native'
    """
    return _cheapest(collective, num_ranks, num_bytes, link, overhead, (NATIVE, *ALGORITHMS[collective]))


@lru_cache(maxsize=1 << 14)
def _cheapest(
    collective: Collective, num_ranks: int, num_bytes: int, link: Link, overhead: Overhead, names: tuple[str, ...]
) -> str:
    def seconds(name: str) -> float:
        return collective_cost(collective, name, num_ranks, num_bytes, link, overhead).seconds(link)

    return min(names, key=seconds)


def schedule_of(collective: Collective, algorithm: str, num_ranks: int, num_bytes: int, root: int = 0) -> Schedule:
    """Return the schedule of an algorithm; for "native", the one that Gloo follows."""
    name = _NATIVE_LIKE[collective] if algorithm == NATIVE else algorithm
    return build_for(collective, name, num_ranks, num_bytes, root=root)


CollectiveKey = tuple[Collective, str, int]
"""Collective, algorithm ("auto" for the cheapest), and number of bytes."""


class CollectiveTable:
    """Costs of thousands of collectives at once: one row for each key.

    What does not depend on the link is looked up once; after that a link costs a few operations on whole columns.

    Args:
        keys: The collectives; repeated keys share a row.
        num_ranks: The number of ranks, N.
        overhead: The machine's overhead.

    >>> keys = [(Collective.ALL_REDUCE, "ring", 4_000), (Collective.ALL_REDUCE, "auto", 4_000)]
    >>> table = CollectiveTable(keys, 4, Overhead(message_s=0, byte_s=0))
    >>> table.seconds(Link(latency_s=1.0, bandwidth_bps=1e9)).round(2)
    array([6., 1.])
    """

    def __init__(self, keys: Iterable[CollectiveKey], num_ranks: int, overhead: Overhead) -> None:
        self.row_of = {key: row for row, key in enumerate(dict.fromkeys(keys))}
        algorithms = [(NATIVE, *ALGORITHMS[key[0]]) if key[1] == AUTO else key[1:2] for key in self.row_of]
        found = [
            _terms(collective, algorithm, num_ranks, num_bytes, overhead)
            for (collective, _, num_bytes), choices in zip(self.row_of, algorithms, strict=True)
            for algorithm in choices
        ]
        self._first = np.cumsum([0] + [len(choices) for choices in algorithms[:-1]])
        self._latencies = np.array([terms.latencies for terms in found], dtype=np.float64)
        self._path_bytes = np.array([terms.path_bytes for terms in found], dtype=np.float64)
        self._overhead_s = np.array([terms.overhead_s for terms in found], dtype=np.float64)
        self._overlaps = np.array([terms.overlaps for terms in found], dtype=bool)

    def seconds(self, link: Link) -> npt.NDArray[np.float64]:
        """Return the time of each row."""
        a, b = self._latencies * link.latency_s, self._path_bytes * 8 / link.bandwidth_bps
        seconds = np.where(self._overlaps, _overlapping_s(a, b), a + b) + self._overhead_s
        return np.minimum.reduceat(seconds, self._first) if seconds.size else seconds


@dataclass(frozen=True)
class _Terms:
    """The terms of a collective's time that do not depend on the link."""

    latencies: float
    path_bytes: float
    overhead_s: float
    overlaps: bool = False
    """Whether bytes hide behind latencies, as in the rings of Gloo."""


@lru_cache(maxsize=1 << 14)
def _terms(collective: Collective, algorithm: str, num_ranks: int, num_bytes: int, overhead: Overhead) -> _Terms:
    if num_ranks == 1:
        return _Terms(0.0, 0.0, 0.0)
    schedule = schedule_of(collective, algorithm, num_ranks, num_bytes)
    rounds, path_bytes = critical_path(schedule).num_rounds, shared_payloads(schedule) * num_bytes
    if algorithm != NATIVE:
        num_messages, num_chunks = _handled(schedule)
        chunk_bytes = num_bytes if collective.one_chunk_a_rank else num_bytes / schedule.num_chunks
        return _Terms(rounds, path_bytes, overhead.of_schedule(rounds, num_messages, num_chunks * chunk_bytes))
    overhead_s = overhead.of_native(rounds)
    if collective is Collective.BROADCAST:
        return _Terms(rounds + 1, path_bytes, overhead_s)
    path_bytes *= _NATIVE_PAIR if collective is Collective.ALL_GATHER and num_ranks == 2 else 1
    return _Terms(_NATIVE_LATENCIES * rounds, path_bytes, overhead_s, overlaps=True)


@lru_cache(maxsize=1 << 10)
def _handled(schedule: Schedule) -> tuple[int, int]:
    """Return the most messages and the most chunks that any rank sends and receives."""
    chunks = [sum(placed.transfer.stop - placed.transfer.start for placed in part) for part in schedule.parts]
    return max(map(len, schedule.parts)), max(chunks)


def _overlapping_s(latencies_s: Seconds, bytes_s: Seconds) -> Seconds:
    """Return √(a² + b² + 0.8 a b): the time of a ring of Gloo whose latencies take a and whose bytes take b."""
    squared = latencies_s * latencies_s + bytes_s * bytes_s + _NATIVE_OVERLAP * latencies_s * bytes_s
    return np.sqrt(squared)  # type: ignore[no-any-return]  # the root of a float is a float
