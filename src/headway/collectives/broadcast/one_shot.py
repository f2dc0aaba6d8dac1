"""One-shot broadcast."""

from __future__ import annotations

from headway.collectives.patterns import relabel
from headway.collectives.schedule import Collective, Schedule, Transfer, make_schedule


def one_shot(num_ranks: int, root: int = 0) -> Schedule:
    """Send everything from the root to all other ranks at once.

        t = α + (N - 1) M β

    **Cost**: ``1`` round, ``N - 1`` payloads, all through the root's NIC.

    >>> len(one_shot(8).rounds)
    1
    """
    rounds = [[Transfer(0, rank, 0, 1) for rank in range(1, num_ranks)]]
    return make_schedule(Collective.BROADCAST, "one_shot", num_ranks, 1, relabel(rounds, num_ranks, root), root=root)
