"""Two-shot all-reduce."""

from __future__ import annotations

from headway.collectives.patterns import direct_gather
from headway.collectives.schedule import Collective, Schedule, Transfer, make_schedule


def two_shot(num_ranks: int) -> Schedule:
    """Send chunk j to rank j from all ranks at once; it adds in order of rank and sends the sum to all.

        t = 2 α + 2 (N - 1)/N M β

    **Cost**: ``2`` rounds, ``2 * (N - 1) / N`` payloads: ring's bytes at a parameter server's latency. It needs
    N - 1 connections per rank that are all in use at once, and a network that copes with them.

    >>> len(two_shot(8).rounds)
    2
    """
    scatter = [
        Transfer(rank, owner, owner, owner + 1, reduce=True)
        for distance in range(1, num_ranks)
        for rank in range(num_ranks)
        for owner in [(rank + distance) % num_ranks]
    ]
    rounds = [scatter, *direct_gather(num_ranks)]
    return make_schedule(Collective.ALL_REDUCE, "two_shot", num_ranks, num_ranks, rounds)
