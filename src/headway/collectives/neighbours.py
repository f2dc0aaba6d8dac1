"""Neighbour exchange: every rank sends its message to its neighbours in a graph only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from headway.collectives.schedule import Collective, Schedule, Transfer, make_schedule


def neighbour_exchange(neighbours: Sequence[Iterable[int]], *, both_ways: bool = True) -> Schedule:
    """Send the messages along all edges at once.

        t = α + degree M β

    **Cost**: ``1`` round, ``degree`` payloads for the busiest rank, whatever the number of ranks.

    Args:
        neighbours: For each rank, the ranks whose messages it receives.
        both_ways: Whether every edge must go both ways.

    >>> [str(t) for t in neighbour_exchange([[1], [0, 2], [1]]).transfers][:2]
    ['rank 0 copies chunk 0 to rank 1', 'rank 1 copies chunk 1 to rank 2']
    """
    graph = tuple(tuple(sorted(set(ranks))) for ranks in neighbours)
    _check(graph, both_ways=both_ways)
    return _build(graph)


@lru_cache(maxsize=64)
def _build(graph: tuple[tuple[int, ...], ...]) -> Schedule:
    # Order within the round is order at the NIC: nearest rank first, as in a one-shot all-gather.
    transfers = [Transfer(src, dst, src, src + 1) for dst, sources in enumerate(graph) for src in sources]
    transfers.sort(key=lambda t: ((t.dst - t.src) % len(graph), t.dst))
    return make_schedule(Collective.NEIGHBOUR_EXCHANGE, "direct", len(graph), len(graph), [transfers], neighbours=graph)


def _check(graph: tuple[tuple[int, ...], ...], *, both_ways: bool) -> None:
    num_ranks = len(graph)
    if num_ranks == 0:
        raise ValueError("the graph has no ranks: give one list of neighbours for each")
    for rank, neighbours in enumerate(graph):
        for peer in neighbours:
            if not 0 <= peer < num_ranks:
                raise ValueError(f"rank {rank} has neighbour {peer}, but ranks go from 0 to {num_ranks - 1}")
            if peer == rank:
                raise ValueError(f"rank {rank} is its own neighbour: leave it out, it has its own message")
            if both_ways and rank not in graph[peer]:
                raise ValueError(f"rank {rank} has neighbour {peer}, but {peer} lacks {rank}: list edges both ways")
