"""A first look at the network, by a few collectives; every rank comes to the same result."""

from __future__ import annotations

import time

import torch

from headway.collectives import Executor
from headway.network.link import Link

_NUM_PINGS = 5
_FIRST_BYTES = 1 << 15
_MOST_BYTES = 1 << 23
_LONG_S = 0.1
"""A bulk transfer that takes so much longer than a ping tells the bandwidth well enough."""
_FASTEST_BPS = 1e11


def probe_link(executor: Executor) -> Link:
    """Measure α by an all-gather of a few bytes, and β by ever larger ones, until they take noticeably longer.

    Of two ranks the late one sees a short time and the other a long one, so the mean over ranks counts, and of calls
    the shortest.

    **Cost**: 13 α, and 4 calls each of 32 kB, 128 kB, ... a rank, until one takes 0.1 s longer than a ping.
    """
    if executor.num_ranks == 1:
        return Link(latency_s=0.0, bandwidth_bps=_FASTEST_BPS)
    ping_s = _shortest_s(executor, 1, _NUM_PINGS)
    num_bytes = _FIRST_BYTES
    while (bulk_s := _shortest_s(executor, num_bytes, 2) - ping_s) < _LONG_S and 4 * num_bytes <= _MOST_BYTES:
        num_bytes *= 4
    beta = max(bulk_s, 1e-9) / ((executor.num_ranks - 1) * num_bytes)
    return Link(latency_s=ping_s, bandwidth_bps=min(8 / beta, _FASTEST_BPS))


def _shortest_s(executor: Executor, num_bytes: int, num_calls: int) -> float:
    message = torch.zeros(num_bytes, dtype=torch.uint8)
    times = []
    for _ in range(2 + num_calls):
        start = time.perf_counter()
        executor.all_gather(message, "one_shot")
        times.append(time.perf_counter() - start)
    own = torch.tensor(times[2:], dtype=torch.float64)  # the first two post their receives late
    return executor.all_gather(own, "one_shot").mean(dim=0).min().item()
