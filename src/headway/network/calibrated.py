"""What collectives really take: their own rounds and bytes, shared NICs, torch's habits, and overhead."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from headway.collectives import (
    ALGORITHMS,
    NATIVE,
    Collective,
    Schedule,
    build,
    build_for,
    critical_path,
    shared_payloads,
)
from headway.network.link import Link
from headway.network.overhead import Overhead

_NATIVE_LIKE = {Collective.ALL_REDUCE: "ring", Collective.ALL_GATHER: "ring", Collective.BROADCAST: "tree"}
"""The schedules that Gloo's own collectives follow."""
_NATIVE_ALPHAS = 2
"""Gloo posts receives when it gets to them: a round costs two latencies."""
_NATIVE_OVERLAP = 0.8
"""Gloo has two parts of a chunk under way: the bytes of one hide behind the latencies of the other, but not all."""

_NATIVE_PAIR = 1.5
"""Gloo's all-gather between two ranks takes so many payloads, and not the one that they have to exchange."""


Seconds = TypeVar("Seconds", float, npt.NDArray[np.float64])


@dataclass(frozen=True, kw_only=True)
class CollectiveCost:
    """How often latency is paid, how many bytes are waited for, and what comes on top."""

    latencies: float
    path_bytes: float
    overhead_s: float

    def seconds(self, link: Link) -> float:
        """Return latencies α + bytes β + overhead."""
        return self.latencies * link.latency_s + self.path_bytes * 8 / link.bandwidth_bps + self.overhead_s


def collective_cost(
    collective: Collective, algorithm: str, num_ranks: int, num_bytes: int, link: Link, overhead: Overhead
) -> CollectiveCost:
    """Return what a collective takes on a link, on this machine.

    Of ours: t = rounds α + payloads M β + overhead, where transfers that are under way together share the NICs.
    Torch's own, as Gloo does it, with a = 2 rounds α and b = payloads M β: t = √(a² + b² + 0.8 a b) for the rings of
    all-reduce and all-gather, which hide some of one behind the other; (log N + 1) α + b for the tree of a broadcast.
    Between two ranks its all-gather takes 1.5 payloads.
    """
    parts = ingredients(collective, algorithm, num_ranks, num_bytes, overhead)
    if not parts.overlaps:
        return CollectiveCost(latencies=parts.latencies, path_bytes=parts.path_bytes, overhead_s=parts.overhead_s)
    a, b = parts.latencies * link.latency_s, parts.path_bytes * 8 / link.bandwidth_bps
    total_s = float(overlapping_s(a, b)) or 1.0
    return CollectiveCost(  # what each of the two adds, at the margin
        latencies=parts.latencies * (a + _NATIVE_OVERLAP / 2 * b) / total_s,
        path_bytes=parts.path_bytes * (b + _NATIVE_OVERLAP / 2 * a) / total_s,
        overhead_s=parts.overhead_s,
    )


@dataclass(frozen=True)
class Ingredients:
    """What the time of a collective is made of, whatever the link."""

    latencies: float
    path_bytes: float
    overhead_s: float
    overlaps: bool
    """Whether bytes hide behind latencies, as in the rings of Gloo."""


def ingredients(
    collective: Collective, algorithm: str, num_ranks: int, num_bytes: int, overhead: Overhead
) -> Ingredients:
    """Return what a collective is made of, on this machine."""
    if num_ranks == 1:
        return Ingredients(0.0, 0.0, 0.0, overlaps=False)
    path = _path(collective, algorithm, num_ranks, num_bytes)
    if algorithm != NATIVE:
        overhead_s = overhead.of_schedule(path.num_rounds, path.num_messages, path.handled_bytes)
        return Ingredients(path.num_rounds, path.path_bytes, overhead_s, overlaps=False)
    overhead_s = overhead.of_native(path.num_rounds)
    if collective is Collective.BROADCAST:
        return Ingredients(path.num_rounds + 1, path.path_bytes, overhead_s, overlaps=False)
    path_bytes = path.path_bytes * (_NATIVE_PAIR if (collective, num_ranks) == (Collective.ALL_GATHER, 2) else 1)
    return Ingredients(_NATIVE_ALPHAS * path.num_rounds, path_bytes, overhead_s, overlaps=True)


def overlapping_s(latencies_s: Seconds, bytes_s: Seconds) -> Seconds:
    """Return √(a² + b² + 0.8 a b): how long a ring of Gloo takes, whose latencies take a and whose bytes take b."""
    squared = latencies_s * latencies_s + bytes_s * bytes_s + _NATIVE_OVERLAP * latencies_s * bytes_s
    return np.sqrt(squared)  # type: ignore[no-any-return]  # a float's root is a float


@lru_cache(maxsize=1 << 14)
def cheapest_algorithm(collective: Collective, num_ranks: int, num_bytes: int, link: Link, overhead: Overhead) -> str:
    """Return the algorithm that takes least, torch's own among them.

    >>> near = Link(latency_s=1e-4, bandwidth_bps=1e10)
    >>> cheapest_algorithm(Collective.ALL_REDUCE, 4, 4_000_000, near, Overhead())
    'native'
    """

    def seconds(name: str) -> float:
        return collective_cost(collective, name, num_ranks, num_bytes, link, overhead).seconds(link)

    return min((NATIVE, *ALGORITHMS[collective]), key=seconds)


def schedule_of(collective: Collective, algorithm: str, num_ranks: int, num_bytes: int, root: int = 0) -> Schedule:
    """Return the schedule of an algorithm, or the one that native follows."""
    name = _NATIVE_LIKE[collective] if algorithm == NATIVE else algorithm
    return build_for(collective, name, num_ranks, num_bytes, root=root)


@dataclass(frozen=True)
class _Path:
    """What a collective is made of, whatever the link."""

    num_rounds: int
    path_bytes: float
    num_messages: int
    """Sent and received by the busiest rank."""
    handled_bytes: float
    """Sent and received by the busiest rank."""


@lru_cache(maxsize=1 << 14)
def _path(collective: Collective, algorithm: str, num_ranks: int, num_bytes: int) -> _Path:
    schedule = schedule_of(collective, algorithm, num_ranks, num_bytes)
    chunk_bytes = num_bytes if collective.one_chunk_a_rank else num_bytes / schedule.num_chunks
    counts = _counts(collective, schedule.algorithm, num_ranks, schedule.num_chunks)
    num_rounds, payloads, num_messages, num_chunks = counts
    return _Path(
        num_rounds=num_rounds,
        path_bytes=payloads * num_bytes,
        num_messages=num_messages,
        handled_bytes=num_chunks * chunk_bytes,
    )


@lru_cache(maxsize=1 << 10)
def _counts(collective: Collective, algorithm: str, num_ranks: int, num_chunks: int) -> tuple[int, float, int, int]:
    """Return rounds, payloads on the path, and what the busiest rank handles: messages and chunks."""
    schedule = build(collective, algorithm, num_ranks, num_chunks=num_chunks if algorithm == "chain" else None)
    chunks = [sum(placed.transfer.stop - placed.transfer.start for placed in part) for part in schedule.parts]
    return critical_path(schedule).num_rounds, shared_payloads(schedule), max(map(len, schedule.parts)), max(chunks)
