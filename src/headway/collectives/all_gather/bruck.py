"""Bruck's all-gather."""

from __future__ import annotations

from headway.collectives.patterns import bruck_gather
from headway.collectives.schedule import Collective, Schedule, make_schedule


def bruck(num_ranks: int) -> Schedule:
    """Double what every rank has, each round from a rank twice as far away; for any number of ranks.

        t = α log N + (N - 1) M β

    **Cost**: ``ceil(log2(N))`` rounds, ``N - 1`` payloads.

    >>> len(bruck(6).rounds)
    3

    Bruck et al., Efficient algorithms for all-to-all communications in multiport message-passing systems, 1997.
    """
    return make_schedule(Collective.ALL_GATHER, "bruck", num_ranks, num_ranks, bruck_gather(num_ranks))
