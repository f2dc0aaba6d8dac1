"""The first look at network and machine."""

from __future__ import annotations

import pytest
import torch

from headway.collectives import Executor, RankReports
from headway.network import Calibration, Link, Overhead, calibrate, calibration


def look() -> Calibration:
    with Executor(timeout_s=20) as executor:
        return calibrate(executor)


@pytest.mark.pool
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_all_ranks_get_the_same_result(pool, num_ranks):
    found = pool.run(look, num_ranks=num_ranks)
    assert len(set(found)) == 1
    assert min(found[0].link.latency_s, found[0].link.bandwidth_bps, found[0].overhead.byte_s) > 0


@pytest.mark.pool
def test_one_rank_has_no_network(pool):
    (found,) = pool.run(look, num_ranks=1)
    assert found == Calibration(link=Link(latency_s=0.0, bandwidth_bps=1e11), overhead=Overhead())


class VirtualNetwork:
    """Ranks that share a clock, a link and a machine; this one is rank 0, and a different rank is late in each call."""

    def __init__(self, link: Link, overhead: Overhead, late_s: float) -> None:
        self.num_ranks = 4
        self.link, self.overhead, self.late_s = link, overhead, late_s
        self.now = 0.0
        self.num_calls = 0
        self.others: list[list[float]] = []

    def perf_counter(self) -> float:
        return self.now

    def all_gather(self, message: torch.Tensor, algorithm: str) -> None:
        """One rank is late: it sees a short call, and all others a long one."""
        assert algorithm == "one_shot"
        others = self.num_ranks - 1
        handling_s = self.overhead.of_schedule(1, 2 * others, 2 * others * message.nbytes)
        seconds = self.link.seconds(others * message.nbytes) + handling_s
        late_rank = self.num_calls % self.num_ranks
        self.num_calls += 1
        seen = [seconds + (-others if rank == late_rank else 1) * self.late_s for rank in range(self.num_ranks)]
        self.now += seen[0]
        self.others.append(seen)

    def control_round(self, report: torch.Tensor, num_answers: int, decide, *, num_pings: int) -> torch.Tensor:
        assert num_pings >= 1
        rows = torch.tensor(self.others[-report.numel() :], dtype=torch.float64).T if self.others else report[None]
        latencies_s = [0.0, *[self.link.latency_s + extra for extra in (0.0, self.late_s, -self.late_s)]]
        answer = decide(RankReports(reports=rows, latencies_s=latencies_s, offsets_s=[0.0] * self.num_ranks))
        assert answer.numel() == num_answers
        return answer


@pytest.mark.parametrize("link", [Link(latency_s=0.02, bandwidth_bps=1e8), Link(latency_s=0.001, bandwidth_bps=1e9)])
def test_link_and_overhead_are_separated_and_late_ranks_do_not_count(monkeypatch, link):
    overhead = Overhead(message_s=2e-4, byte_s=0.0)
    network = VirtualNetwork(link, overhead, late_s=0.0003)
    monkeypatch.setattr(calibration, "time", network)
    found = calibrate(network)
    assert found.link.latency_s == pytest.approx(link.latency_s)
    assert found.link.bandwidth_bps == pytest.approx(link.bandwidth_bps, rel=0.01)
    assert found.overhead.message_s == pytest.approx(2e-4, rel=0.01)
