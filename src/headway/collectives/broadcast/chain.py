"""Pipelined-chain broadcast."""

from __future__ import annotations

from headway.collectives.patterns import relabel
from headway.collectives.schedule import Collective, Schedule, Transfer, make_schedule


def chain(num_ranks: int, root: int = 0, num_chunks: int = 16) -> Schedule:
    """Pass chunk after chunk along a chain; every rank sends one while it receives the next.

        t = (N - 1) α + (1 + (N - 2)/chunks) M β

    **Cost**: ``N - 1`` rounds, ``1 + (N - 2) / chunks`` payloads. Latency is paid once per hop, not per chunk:
    chunks that follow each other are in flight together.

    >>> len(chain(8, num_chunks=4).rounds)
    10
    """
    rounds = [
        [
            Transfer(rank, rank + 1, step - rank, step - rank + 1)
            for rank in range(num_ranks - 1)
            if 0 <= step - rank < num_chunks
        ]
        for step in range(num_ranks - 2 + num_chunks)
    ]
    return make_schedule(
        Collective.BROADCAST, "chain", num_ranks, num_chunks, relabel(rounds, num_ranks, root), root=root
    )
