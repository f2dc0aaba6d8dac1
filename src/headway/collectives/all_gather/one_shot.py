"""One-shot all-gather."""

from __future__ import annotations

from headway.collectives.patterns import everyone_gather
from headway.collectives.schedule import Collective, Schedule, make


def one_shot(num_ranks: int) -> Schedule:
    """Send one's message to everybody at once.

        t = α + (N - 1) M β

    **Cost**: ``1`` round, ``N - 1`` payloads: no all-gather can have fewer of either. What it takes is N - 1
    connections a rank that are all in use at once, and a network that bears them.

    >>> len(one_shot(8).rounds)
    1
    """
    return make(Collective.ALL_GATHER, "one_shot", num_ranks, num_ranks, everyone_gather(num_ranks))
