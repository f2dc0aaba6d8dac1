"""Recursive-doubling all-reduce."""

from __future__ import annotations

from headway.collectives.patterns import Fold, Rounds, strides
from headway.collectives.schedule import Collective, Schedule, Transfer, make_schedule


def recursive_doubling(num_ranks: int) -> Schedule:
    """Swap everything with a partner 1, 2, 4, ... ranks away, and add.

        t = α log N + log N M β

    **Cost**: ``floor(log2(N)) + 2 * fold`` rounds, ``floor(log2(N)) + 2 * fold`` payloads, where fold is 0 for a
    power of two and 1 otherwise: the ranks above it first hand their payload to a neighbour, and get the sum
    from it at the end.

    >>> len(recursive_doubling(8).rounds), len(recursive_doubling(6).rounds)
    (3, 4)

    Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005.
    """
    fold = Fold(num_ranks)
    swaps: Rounds = [
        [Transfer(fold.rank(lead), fold.rank(lead ^ stride), 0, 1, reduce=True) for lead in range(fold.num_leads)]
        for stride in strides(fold.num_leads)
    ]
    rounds = fold.into_leads(1) + swaps + fold.out_of_leads(1)
    return make_schedule(Collective.ALL_REDUCE, "recursive_doubling", num_ranks, 1, rounds)
