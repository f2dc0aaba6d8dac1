"""One-shot all-gather."""

from __future__ import annotations

from headway.collectives.patterns import direct_gather
from headway.collectives.schedule import Collective, Schedule, make_schedule


def one_shot(num_ranks: int) -> Schedule:
    """Send the message to all other ranks at once.

        t = α + (N - 1) M β

    **Cost**: ``1`` round, ``N - 1`` payloads: no all-gather can have fewer of either. It needs N - 1
    connections per rank that are all in use at once, and a network that copes with them.

    >>> len(one_shot(8).rounds)
    1
    """
    return make_schedule(Collective.ALL_GATHER, "one_shot", num_ranks, num_ranks, direct_gather(num_ranks))
