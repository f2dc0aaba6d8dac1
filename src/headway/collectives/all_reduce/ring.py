"""Ring all-reduce."""

from __future__ import annotations

from headway.collectives.patterns import ring_gather, ring_reduce_scatter
from headway.collectives.schedule import Collective, Schedule, make_schedule


def ring(num_ranks: int) -> Schedule:
    """Add N chunks up around the ring, then pass the sums around it once more.

        t = 2 (N - 1) α + 2 (N - 1)/N M β

    **Cost**: ``2 * (N - 1)`` rounds, ``2 * (N - 1) / N`` payloads. The fewest bytes of all, and the most rounds.

    >>> ring(8).num_chunks
    8

    Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009.
    """
    rounds = ring_reduce_scatter(num_ranks) + ring_gather(num_ranks, shift=1)
    return make_schedule(Collective.ALL_REDUCE, "ring", num_ranks, num_ranks, rounds)
