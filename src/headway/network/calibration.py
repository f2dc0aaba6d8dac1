"""Measures the network and the machine when training starts; all ranks get the same result."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from headway.collectives import Executor, RankReports, pings_worth_sending
from headway.network.costs import Overhead
from headway.network.link import Link

_NUM_PINGS = 5
_FIRST_BYTES, _MOST_BYTES = 1 << 15, 1 << 23
_LONG_S, _LONG_ALPHAS = 0.1, 6
"""A transfer that takes this much longer than a ping is good enough for the bandwidth: TCP has opened its window."""
_COPY_BYTES, _NUM_COPIES = 1 << 22, 8
_FAST_BPS, _FASTEST_BPS = 1e10, 1e11
"""A bandwidth above the first needs no closer look; one above the second cannot be measured."""
_LEAST_MESSAGE_S = 3e-5
_LEAST_SHARE = 0.3
"""A transfer spends at least this share of its time on the network, whatever copying seems to take."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The link, and the overhead of this machine."""

    link: Link
    overhead: Overhead = field(default_factory=Overhead)


def calibrate(executor: Executor) -> Calibration:
    """Measure α by control rounds, overhead per message by all-gathers of a byte and per byte by copying, β by bulk.

    All ranks work at the same time, as in training: where they share cores, they do so here too.

    **Cost**: about 50 α, and 4 calls each of 32 kB, 128 kB, ... per rank, until one takes 0.1 s and 6 α longer than a
    ping, or is very fast.
    """
    num_ranks = executor.num_ranks
    if num_ranks == 1:
        return Calibration(link=Link(latency_s=0.0, bandwidth_bps=_FASTEST_BPS))
    survey = _Survey(executor)
    byte_s = survey.copying_s() / _COPY_BYTES
    ping_s = survey.gathering_s(1, _NUM_PINGS)
    beta = survey.seconds_a_byte(ping_s)
    beta = max(beta - 2 * byte_s, _LEAST_SHARE * beta)
    message_s = Overhead().message_s_of(ping_s - survey.latency_s, 1, 2 * (num_ranks - 1))
    return Calibration(
        link=Link(latency_s=survey.latency_s, bandwidth_bps=min(8 / beta, _FASTEST_BPS)),
        overhead=Overhead(message_s=max(message_s, _LEAST_MESSAGE_S), byte_s=byte_s),
    )


class _Survey:
    """Times operations on all ranks at once; the control rounds that agree on the results measure the latency."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.latency_s = float("inf")

    def copying_s(self) -> float:
        """Return the time to copy a block of memory, while all other ranks do the same."""
        source = torch.zeros(_COPY_BYTES, dtype=torch.uint8)
        target = torch.ones_like(source)
        self._agree([0.0])
        start = time.perf_counter()
        for _ in range(_NUM_COPIES):
            target.copy_(source)
        return self._agree([(time.perf_counter() - start) / _NUM_COPIES])

    def gathering_s(self, num_bytes: int, num_calls: int) -> float:
        """Return the time of an all-gather; the first calls, whose receives are posted late, do not count.

        The later of two ranks sees a short time and the other a long one, so take the mean over ranks; then take the
        shortest call.
        """
        message = torch.zeros(num_bytes, dtype=torch.uint8)
        times_s = []
        for _ in range(2 + num_calls):
            start = time.perf_counter()
            self._executor.all_gather(message, "one_shot")
            times_s.append(time.perf_counter() - start)
        return self._agree(times_s[2:])

    def seconds_a_byte(self, ping_s: float) -> float:
        """Return β, copying included, from all-gathers that grow until they take long enough."""
        others, num_bytes = self._executor.num_ranks - 1, _FIRST_BYTES
        long_s = max(_LONG_S, _LONG_ALPHAS * self.latency_s)
        while True:
            bulk_s = max(self.gathering_s(num_bytes, 2) - ping_s, 1e-9)
            beta = bulk_s / (others * num_bytes)
            if bulk_s > long_s or 4 * num_bytes > _MOST_BYTES or (8 / beta > _FAST_BPS and num_bytes > _FIRST_BYTES):
                return beta
            num_bytes *= 4

    def _agree(self, times_s: list[float]) -> float:
        """Return the smallest of the means over ranks."""

        def decide(reports: RankReports) -> torch.Tensor:
            mean_s = reports.reports.mean(dim=0).min().item()
            return torch.tensor([mean_s, reports.median_latency_s], dtype=torch.float64)

        report = torch.tensor(times_s, dtype=torch.float64)
        num_pings = 1 + pings_worth_sending(self.latency_s)  # the first may meet a receiver that is not ready
        seconds, latency_s = self._executor.control_round(report, 2, decide, num_pings=num_pings).tolist()
        self.latency_s = min(self.latency_s, max(latency_s, 0.0))
        return float(seconds)
