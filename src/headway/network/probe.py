"""A first look at the network, by a few collectives; every rank comes to the same result."""

from __future__ import annotations

import time

import torch

from headway.collectives import Executor
from headway.network.link import Link

_NUM_PINGS = 5
_FIRST_BYTES = 1 << 15
_MOST_BYTES = 1 << 22
_LONG_S = 0.1
"""A bulk transfer that takes so much longer than a ping tells the bandwidth well enough."""
_FASTEST_BPS = 1e11


def probe_link(executor: Executor) -> Link:
    """Measure α by an all-gather of a few bytes, and β by ever larger ones, until they take noticeably longer.

    A rank that waits for a late one sees a long time, so the shortest over calls and ranks counts.

    **Cost**: about 10 α + 0.2 s, or 6 N times 32 kB where that takes longer.
    """
    if executor.num_ranks == 1:
        return Link(latency_s=0.0, bandwidth_bps=_FASTEST_BPS)
    ping_s = _shortest_s(executor, 1, _NUM_PINGS)
    num_bytes = _FIRST_BYTES
    while (bulk_s := _shortest_s(executor, num_bytes, 2) - ping_s) < _LONG_S and num_bytes < _MOST_BYTES:
        num_bytes *= 4
    beta = max(bulk_s, 1e-9) / ((executor.num_ranks - 1) * num_bytes)
    return Link(latency_s=ping_s, bandwidth_bps=min(8 / beta, _FASTEST_BPS))


def _shortest_s(executor: Executor, num_bytes: int, num_calls: int) -> float:
    message = torch.zeros(num_bytes, dtype=torch.uint8)
    shortest = float("inf")
    for call in range(2 + num_calls):
        start = time.perf_counter()
        executor.all_gather(message, "one_shot")
        if call >= 2:  # the first two post their receives late
            shortest = min(shortest, time.perf_counter() - start)
    return executor.all_gather(torch.tensor([shortest], dtype=torch.float64), "one_shot").min().item()
