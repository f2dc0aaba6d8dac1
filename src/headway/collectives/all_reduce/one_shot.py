"""One-shot all-reduce."""

from __future__ import annotations

from headway.collectives.schedule import Collective, Schedule, Transfer, make


def one_shot(num_ranks: int) -> Schedule:
    """Send everything to everybody at once; each rank adds up all it got, in order of rank.

        t = α + (N - 1) M β

    **Cost**: ``1`` round, ``N - 1`` payloads. The fewest rounds there can be: for small payloads over long distances.

    >>> len(one_shot(8).rounds)
    1
    """
    everyone = [
        Transfer(rank, (rank + distance) % num_ranks, 0, 1, reduce=True)
        for distance in range(1, num_ranks)
        for rank in range(num_ranks)
    ]
    return make(Collective.ALL_REDUCE, "one_shot", num_ranks, 1, [everyone])
