"""Recursive-doubling all-gather."""

from __future__ import annotations

from headway.collectives.patterns import Fold, Rounds, strides
from headway.collectives.schedule import Collective, Schedule, Transfer, make_schedule


def recursive_doubling(num_ranks: int) -> Schedule:
    """Swap everything gathered so far with a partner 1, 2, 4, ... ranks away.

        t = α log N + (N - 1) M β

    **Cost**: ``floor(log2(N)) + 2 * fold`` rounds, ``N - 1 + fold * 2 * P`` payloads, where P is the largest power
    of two up to N, and fold is 0 if that is N and 1 otherwise: the ranks above it hand their message to a neighbour
    first, and get all messages from it at the end.

    >>> len(recursive_doubling(8).rounds), len(recursive_doubling(6).rounds)
    (3, 4)
    """
    fold = Fold(num_ranks)
    into: Rounds = [[Transfer(extra, lead, extra, extra + 1) for lead, extra in fold.pairs()]]
    swaps: Rounds = [
        [_all_of(fold, lead, stride) for lead in range(fold.num_leads)] for stride in strides(fold.num_leads)
    ]
    return make_schedule(
        Collective.ALL_GATHER, "recursive_doubling", num_ranks, num_ranks, into + swaps + fold.out_of_leads(num_ranks)
    )


def _all_of(fold: Fold, lead: int, stride: int) -> Transfer:
    """Send to the partner the messages of all ranks in the aligned run of leads that this one belongs to."""
    first = lead & -stride
    return Transfer(fold.rank(lead), fold.rank(lead ^ stride), fold.rank(first), fold.rank(first + stride))
