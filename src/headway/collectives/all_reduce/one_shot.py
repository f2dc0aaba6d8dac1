"""One-shot all-reduce."""

from __future__ import annotations

from headway.collectives.schedule import Collective, Schedule, Transfer, make_schedule


def one_shot(num_ranks: int) -> Schedule:
    """Send everything to all other ranks at once; each rank adds up what it receives, in order of rank.

        t = α + (N - 1) M β

    **Cost**: ``1`` round, ``N - 1`` payloads. No all-reduce has fewer rounds: for small payloads over long distances.

    >>> len(one_shot(8).rounds)
    1
    """
    transfers = [
        Transfer(rank, (rank + distance) % num_ranks, 0, 1, reduce=True)
        for distance in range(1, num_ranks)
        for rank in range(num_ranks)
    ]
    return make_schedule(Collective.ALL_REDUCE, "one_shot", num_ranks, 1, [transfers])
