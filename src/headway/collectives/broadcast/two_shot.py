"""Two-shot broadcast."""

from __future__ import annotations

from headway.collectives.patterns import relabel
from headway.collectives.schedule import Collective, Schedule, Transfer, make_schedule


def two_shot(num_ranks: int, root: int = 0) -> Schedule:
    """Send a chunk to each other rank; they then exchange their chunks all at once.

        t = 2 α + (2 N - 3)/(N - 1) M β

    **Cost**: ``2`` rounds, at most ``2 - 1 / (N - 1)`` payloads.

    >>> len(two_shot(8).rounds)
    2
    """
    others = range(1, num_ranks)
    scatter = [Transfer(0, rank, rank - 1, rank) for rank in others]
    gather = [
        Transfer(rank, 1 + (rank - 1 + distance) % len(others), rank - 1, rank)
        for distance in range(1, len(others))
        for rank in others
    ]
    rounds = relabel([scatter, gather], num_ranks, root)
    return make_schedule(Collective.BROADCAST, "two_shot", num_ranks, max(1, len(others)), rounds, root=root)
