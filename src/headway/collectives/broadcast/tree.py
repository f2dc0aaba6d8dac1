"""Binomial-tree broadcast."""

from __future__ import annotations

from headway.collectives.patterns import binomial_broadcast, relabel
from headway.collectives.schedule import Collective, Schedule, make_schedule


def tree(num_ranks: int, root: int = 0) -> Schedule:
    """Send everything down a binomial tree.

        t = α log N + log N M β

    **Cost**: ``ceil(log2(N))`` rounds, ``ceil(log2(N))`` payloads.

    >>> len(tree(8).rounds)
    3
    """
    rounds = relabel(binomial_broadcast(num_ranks, 1), num_ranks, root)
    return make_schedule(Collective.BROADCAST, "tree", num_ranks, 1, rounds, root=root)
