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


def run_control_rounds(late_rank: int, num_pings: int = 4) -> tuple[list[float], list[RankReports]]:
    """Clocks are hours apart, and one rank comes late, twice."""
    with Executor(timeout_s=20) as executor:
        control_round_module.time = Clock(3600.0 * executor.rank)
        received: list[RankReports] = []

        def decide(reports: RankReports) -> torch.Tensor:
            received.append(reports)
            return reports.reports.sum(dim=0) + 0.5

        try:
            for is_late in (False, True, True):
                if is_late and executor.rank == late_rank:
                    time.sleep(LATE_S)
                report = torch.tensor([1.0, executor.rank], dtype=torch.float64)
                answer = executor.control_round(report, 2, decide, num_pings=num_pings)
        finally:
            control_round_module.time = time
        return answer.tolist(), received[1:]


@pytest.mark.parametrize("late_rank", [0, 1])
def test_rank_0_gets_all_reports_and_all_ranks_its_answer_whatever_clocks_say(pool, late_rank):
    """Neither clocks nor a late rank count as latency."""
    answers, received = zip(*pool.run(run_control_rounds, late_rank, num_ranks=3), strict=True)
    assert answers == ([3.5, 3.5],) * 3
    late, *others = received
    assert others == [[], []]
    for reports in late:
        assert reports.reports.tolist() == [[1, 0], [1, 1], [1, 2]]
        assert reports.latencies_s[0] == reports.offsets_s[0] == 0
    for rank in (1, 2):  # in one round a rank may have been held up by others of this machine
        latency_s, offset_s = min((reports.latencies_s[rank], reports.offsets_s[rank]) for reports in late)
        assert 0 < latency_s < LATE_S / 2
        assert offset_s == pytest.approx(3600 * rank, abs=LATE_S / 2)


def run_alone() -> float:
    with Executor(timeout_s=20) as executor:
        report = torch.tensor([2.0], dtype=torch.float64)
        return executor.control_round(report, 1, lambda reports: 2 * reports.reports[0]).item()


def test_one_rank_alone(pool):
    assert pool.run(run_alone, num_ranks=1) == [4.0]


def fail_to_decide() -> str:
    with Executor(timeout_s=20) as executor:
        try:
            executor.control_round(torch.zeros(1, dtype=torch.float64), 1, lambda _reports: 1 / 0)
        except ZeroDivisionError:
            return "cannot decide"
        except Exception as error:
            return type(error).__name__
        return "answered"


def test_no_rank_waits_for_one_that_failed_to_decide(pool):
    assert pool.run(fail_to_decide, num_ranks=3) == ["cannot decide", "PeerLost", "PeerLost"]


def run_with_a_far_rank() -> list[RankReports]:
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
            for _ in range(3):  # the first shows who is near
                executor.control_round(
                    torch.zeros(1, dtype=torch.float64),
                    1,
                    lambda reports: received.append(reports) or reports.reports[0],
                )
        finally:
            control_round_module.ControlRound._follow = follow
        return received[1:]


def test_replies_of_near_ranks_are_read_first(pool):
    received = pool.run(run_with_a_far_rank, num_ranks=4)[0]
    nearest_s = [min(each) for each in zip(*(reports.latencies_s for reports in received), strict=True)]
    assert nearest_s[1] > LATE_S / 3
    assert max(nearest_s[2:]) < LATE_S / 3  # in one round a rank may have been held up
    for reports in received:
        assert reports.median_latency_s == sorted(reports.latencies_s[1:])[1]
