"""Ring all-gather."""

from __future__ import annotations

from headway.collectives.patterns import ring_gather
from headway.collectives.schedule import Collective, Schedule, make_schedule


def ring(num_ranks: int) -> Schedule:
    """Pass the messages around the ring.

        t = (N - 1) α + (N - 1) M β

    **Cost**: ``N - 1`` rounds, ``N - 1`` payloads.

    >>> len(ring(8).rounds)
    7
    """
    return make_schedule(Collective.ALL_GATHER, "ring", num_ranks, num_ranks, ring_gather(num_ranks))
