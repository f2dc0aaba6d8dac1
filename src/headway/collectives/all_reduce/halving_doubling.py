"""Recursive halving-doubling all-reduce (Rabenseifner)."""

from __future__ import annotations

from headway.collectives.patterns import Fold, Rounds, strides
from headway.collectives.schedule import Collective, Schedule, Transfer, make_schedule


def halving_doubling(num_ranks: int) -> Schedule:
    """Swap halves, quarters, ... with nearer and nearer partners and add; then gather the sums the same way back.

        t = 2 α log N + 2 (N - 1)/N M β

    **Cost**: ``2 * floor(log2(N)) + 2 * fold`` rounds, ``2 * (P - 1) / P + 2 * fold`` payloads, where P is the
    largest power of two up to N, and fold is 0 if that is N and 1 otherwise (see recursive doubling).

    >>> len(halving_doubling(8).rounds)
    6

    Rabenseifner, Optimization of collective reduction operations, 2004.
    """
    fold = Fold(num_ranks)
    num_chunks = fold.num_leads
    halving: Rounds = [
        [_half_of(fold, lead, lead ^ stride, stride, reduce=True) for lead in range(num_chunks)]
        for stride in reversed(strides(num_chunks))
    ]
    doubling: Rounds = [
        [_half_of(fold, lead, lead, stride, reduce=False) for lead in range(num_chunks)]
        for stride in strides(num_chunks)
    ]
    rounds = fold.into_leads(num_chunks) + halving + doubling + fold.out_of_leads(num_chunks)
    return make_schedule(Collective.ALL_REDUCE, "halving_doubling", num_ranks, num_chunks, rounds)


def _half_of(fold: Fold, lead: int, owner: int, stride: int, *, reduce: bool) -> Transfer:
    """Send to the partner the aligned run of ``stride`` chunks that ``owner`` belongs to."""
    start = owner & -stride
    return Transfer(fold.rank(lead), fold.rank(lead ^ stride), start, start + stride, reduce)
