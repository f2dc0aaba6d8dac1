"""Two-shot all-reduce."""

from __future__ import annotations

from headway.collectives.patterns import everyone_gather
from headway.collectives.schedule import Collective, Schedule, Transfer, make


def two_shot(num_ranks: int) -> Schedule:
    """Send chunk j to rank j from everywhere at once; it adds in order of rank and sends the sum to everybody.

        t = 2 α + 2 (N - 1)/N M β

    **Cost**: ``2`` rounds, ``2 * (N - 1) / N`` payloads: ring's bytes at a parameter server's latency. What it
    takes is N - 1 connections a rank that are all in use at once, and a network that bears them.

    >>> len(two_shot(8).rounds)
    2
    """
    scatter = [
        Transfer(rank, owner, owner, owner + 1, reduce=True)
        for distance in range(1, num_ranks)
        for rank in range(num_ranks)
        for owner in [(rank + distance) % num_ranks]
    ]
    rounds = [scatter, *everyone_gather(num_ranks)]
    return make(Collective.ALL_REDUCE, "two_shot", num_ranks, num_ranks, rounds)
