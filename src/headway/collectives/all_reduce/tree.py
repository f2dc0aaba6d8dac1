"""Binomial-tree all-reduce."""

from __future__ import annotations

from headway.collectives.patterns import binomial_broadcast, binomial_reduce
from headway.collectives.schedule import Collective, Schedule, make_schedule


def tree(num_ranks: int) -> Schedule:
    """Add everything up a binomial tree to rank 0, then send the sum down the same tree.

        t = 2 α log N + 2 log N M β

    **Cost**: ``2 * ceil(log2(N))`` rounds, ``2 * ceil(log2(N))`` payloads.

    >>> len(tree(8).rounds)
    6
    """
    rounds = binomial_reduce(num_ranks, 1) + binomial_broadcast(num_ranks, 1)
    return make_schedule(Collective.ALL_REDUCE, "tree", num_ranks, 1, rounds)
