"""Control rounds: rank 0 gets all reports, all ranks get its answer, clocks and latencies are measured correctly."""

from __future__ import annotations

import time

import pytest
import torch

from headway.collectives import Executor, RankReports
from headway.collectives import control_round as control_round_module

LATE_S = 0.5
"""Far more than a message takes between processes of a busy machine."""


class Clock:
    """Stands in for the module `time`, on a rank whose clock is ahead."""

    def __init__(self, ahead_s: float) -> None:
        self.ahead_s = ahead_s

    def perf_counter(self) -> float:
        return time.perf_counter() + self.ahead_s


def run_control_rounds(late_rank: int, num_pings: int = 4) -> tuple[list[float], RankReports | None]:
    """Clocks are hours apart, and one rank comes late."""
    with Executor(timeout_s=20) as executor:
        control_round_module.time = Clock(3600.0 * executor.rank)
        received: list[RankReports] = []

        def decide(reports: RankReports) -> torch.Tensor:
            received.append(reports)
            return reports.reports.sum(dim=0) + 0.5

        try:
            for is_last in (False, False, True):
                if is_last and executor.rank == late_rank:
                    time.sleep(LATE_S)
                report = torch.tensor([1.0, executor.rank], dtype=torch.float64)
                answer = executor.control_round(report, 2, decide, num_pings=num_pings)
        finally:
            control_round_module.time = time
        return answer.tolist(), received[-1] if received else None


@pytest.mark.parametrize("late_rank", [0, 1])
def test_rank_0_gets_all_reports_and_all_ranks_its_answer_whatever_clocks_say(pool, late_rank):
    """Neither clocks nor a late rank count as latency."""
    answers, received = zip(*pool.run(run_control_rounds, late_rank, num_ranks=3), strict=True)
    assert answers == ([3.5, 3.5],) * 3
    reports, *others = received
    assert others == [None, None]
    assert reports.reports.tolist() == [[1, 0], [1, 1], [1, 2]]
    assert reports.latencies_s[0] == reports.offsets_s[0] == 0
    assert all(0 < latency_s < LATE_S / 2 for latency_s in reports.latencies_s[1:])
    assert reports.offsets_s == pytest.approx([0, 3600, 7200], abs=LATE_S / 2)


def run_alone() -> float:
    with Executor(timeout_s=20) as executor:
        report = torch.tensor([2.0], dtype=torch.float64)
        return executor.control_round(report, 1, lambda reports: 2 * reports.reports[0]).item()


def test_one_rank_alone(pool):
    assert pool.run(run_alone, num_ranks=1) == [4.0]


def fail_to_decide() -> str:
    with Executor(timeout_s=3) as executor:
        try:
            executor.control_round(torch.zeros(1, dtype=torch.float64), 1, lambda _reports: 1 / 0)
        except ZeroDivisionError:
            return "cannot decide"
        except Exception as error:
            return type(error).__name__
        return "answered"


def test_no_rank_waits_for_one_that_failed_to_decide(pool):
    assert pool.run(fail_to_decide, num_ranks=3) == ["cannot decide", "PeerLost", "PeerLost"]


def run_with_a_far_rank() -> tuple[list[float], list[int]] | None:
    """Rank 1 always replies late: the ranks read after it must not seem as far."""
    with Executor(timeout_s=20) as executor:
        follow = control_round_module.ControlRound._follow

        def far(self) -> None:
            send = self._send
            self._send = lambda *message: (time.sleep(LATE_S), send(*message))
            follow(self)

        if executor.rank == 1:
            control_round_module.ControlRound._follow = far
        received: list[RankReports] = []
        try:
            for _ in range(2):  # the first shows who is near
                executor.control_round(
                    torch.zeros(1, dtype=torch.float64),
                    1,
                    lambda reports: received.append(reports) or reports.reports[0],
                )
        finally:
            control_round_module.ControlRound._follow = follow
        return (received[-1].latencies_s, received[-1].median_latency_s) if received else None


def test_replies_of_near_ranks_are_read_first(pool):
    latencies_s, median_s = pool.run(run_with_a_far_rank, num_ranks=4)[0]
    assert latencies_s[1] > LATE_S / 3
    assert max(latencies_s[2:]) < LATE_S / 3
    assert median_s == sorted(latencies_s[1:])[1]
