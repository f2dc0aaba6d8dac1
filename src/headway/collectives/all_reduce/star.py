"""Parameter-server all-reduce."""

from __future__ import annotations

from headway.collectives.schedule import Collective, Schedule, Transfer, make_schedule


def star(num_ranks: int) -> Schedule:
    """Send everything to rank 0, the parameter server, which adds in order of rank and sends the sum to all.

        t = 2 α + 2 (N - 1) M β

    **Cost**: ``2`` rounds, ``2 * (N - 1)`` payloads, all through the server's NIC.

    >>> len(star(8).rounds)
    2
    """
    push = [Transfer(rank, 0, 0, 1, reduce=True) for rank in range(1, num_ranks)]
    pull = [Transfer(0, rank, 0, 1) for rank in range(1, num_ranks)]
    return make_schedule(Collective.ALL_REDUCE, "star", num_ranks, 1, [push, pull])
