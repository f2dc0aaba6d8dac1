"""Active measurement of latency and bandwidth between every two ranks, to inspect a network before training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from headway.collectives import Executor

_NUM_PINGS, _NUM_BULKS, _NUM_WARM_UP = 12, 2, 2
_FIRST_BYTES, _GROWTH, _MOST_BYTES = 1 << 15, 4, 1 << 24
_SCRATCH_BYTES = 1 << 27
"""A buffer holds a message of every rank, so with many ranks messages stay smaller."""
_LONG_S, _LONG_ALPHAS = 0.15, 8
"""A transfer that takes this much longer than a small one is good for the bandwidth: TCP has opened its window."""
_TOO_LONG_S = 3.0
"""Other pairs may need more bytes, but no pair takes longer than this for them."""

Matching = list[int | None]
"""For each rank its partner, or None."""


@dataclass(frozen=True, kw_only=True)
class PairMatrix:
    """Measurements between ranks; rows send, columns receive. None on the diagonal."""

    latency_s: list[list[float | None]]
    """Half the round trip, so the same both ways."""
    bandwidth_bps: list[list[float | None]]


def probe_pairs(executor: Executor, on_progress: Callable[[int, int], None] = lambda _done, _all: None) -> PairMatrix:
    """Measure every pair. All ranks get the same result.

    Half of the ranks talk to the other half at a time, so that each NIC has one task.

    **Cost**: for each of about N - 1 matchings 12 round trips of a small message, and each way 4 transfers of 32 kB,
    128 kB, ... until they take 0.15 s longer than that.

    Args:
        executor: The ranks to measure.
        on_progress: Called with the number of finished matchings, and of all.
    """
    n = executor.num_ranks
    latency_s: list[list[float | None]] = [[None] * n for _ in range(n)]
    bandwidth_bps: list[list[float | None]] = [[None] * n for _ in range(n)]
    matchings = list(tournament(n))
    for number, matching in enumerate(matchings):
        pings = list(_ping(executor, matching))
        for rank, partner, seconds in pings:
            latency_s[rank][partner] = latency_s[partner][rank] = seconds
        for ways in ([(rank, partner, s) for rank, partner, s in pings], [(b, a, s) for a, b, s in pings]):
            for src, dst, bps in _bulk(executor, ways):
                bandwidth_bps[src][dst] = bps
        on_progress(number + 1, len(matchings))
    return PairMatrix(latency_s=latency_s, bandwidth_bps=bandwidth_bps)


def tournament(num_ranks: int) -> Iterator[Matching]:
    """Yield matchings in which every two ranks are partners exactly once.

    >>> list(tournament(4))
    [[3, 2, 1, 0], [2, 3, 0, 1], [1, 0, 3, 2]]
    """
    seats: list[int | None] = list(range(num_ranks))
    if num_ranks % 2:
        seats.append(None)
    for _ in range(len(seats) - 1):
        partner_of: Matching = [None] * num_ranks
        for one, other in zip(seats, reversed(seats), strict=True):
            if one is not None:
                partner_of[one] = other
        if num_ranks > 1:
            yield partner_of
        seats = [seats[0], seats[-1], *seats[1:-1]]


def _pairs(matching: Matching) -> Iterator[tuple[int, int]]:
    for rank, partner in enumerate(matching):
        if partner is not None and rank < partner:
            yield rank, partner


def _ping(executor: Executor, matching: Matching) -> Iterator[tuple[int, int, float]]:
    """Yield each pair and its latency."""
    own_s = executor.ping(matching[executor.rank], _NUM_PINGS)
    rows = _share(executor, [own_s])
    for rank, partner in _pairs(matching):
        yield rank, partner, rows[rank][0]


def _bulk(executor: Executor, ways: Sequence[tuple[int, int, float]]) -> Iterator[tuple[int, int, float]]:
    """Yield sender, receiver and bandwidth, from transfers that grow until they take long enough."""
    graph: list[list[int]] = [[] for _ in range(executor.num_ranks)]
    for src, dst, _ in ways:
        graph[dst] = [src]
    long_s = max(_LONG_S, _LONG_ALPHAS * max(latency_s for _, _, latency_s in ways))
    num_bytes = _FIRST_BYTES
    while True:
        rows = _share(executor, _receiving_s(executor, graph, num_bytes))
        net_s = {(src, dst): max(min(rows[dst]) - latency_s, 1e-9) for src, dst, latency_s in ways}
        is_enough = min(net_s.values()) > long_s or max(net_s.values()) > _TOO_LONG_S
        if is_enough or num_bytes * _GROWTH > min(_MOST_BYTES, _SCRATCH_BYTES // executor.num_ranks):
            break
        num_bytes *= _GROWTH
    for (src, dst), seconds in net_s.items():
        yield src, dst, 8 * num_bytes / seconds


def _receiving_s(executor: Executor, graph: Sequence[Sequence[int]], num_bytes: int) -> list[float]:
    """Return the times of some calls; all ranks begin together."""
    message = torch.zeros(num_bytes, dtype=torch.uint8)
    times_s = []
    for _ in range(_NUM_WARM_UP + _NUM_BULKS):
        executor.all_gather(torch.zeros(1), "one_shot")
        start = time.perf_counter()
        executor.neighbour_exchange(message, graph, both_ways=False)
        times_s.append(time.perf_counter() - start)
    return times_s[_NUM_WARM_UP:]


def _share(executor: Executor, times_s: list[float]) -> list[list[float]]:
    """Return all ranks' times, one row per rank."""
    rows: list[list[float]] = executor.all_gather(torch.tensor(times_s, dtype=torch.float64), "one_shot").tolist()
    return rows
