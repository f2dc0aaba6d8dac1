"""Councils: everybody is heard, everybody gets the same answer, and clocks and latencies come out right."""

from __future__ import annotations

import time

import pytest
import torch

from headway.collectives import Executor, Hearing
from headway.collectives import council as council_module

pytestmark = pytest.mark.pool
LATE_S = 0.05


class Clock:
    """Stands in for the module `time`, on a rank whose clock is ahead."""

    def __init__(self, ahead_s: float) -> None:
        self.ahead_s = ahead_s

    def perf_counter(self) -> float:
        return time.perf_counter() + self.ahead_s


def hold(late_rank: int, num_calls: int = 4) -> tuple[list[float], Hearing | None]:
    """Clocks are hours apart, and one rank comes late."""
    with Executor(timeout_s=20) as executor:
        council_module.time = Clock(3600.0 * executor.rank)
        heard: list[Hearing] = []

        def decide(hearing: Hearing) -> torch.Tensor:
            heard.append(hearing)
            return hearing.reports.sum(dim=0) + 0.5

        try:
            for _ in range(3):
                if executor.rank == late_rank:
                    time.sleep(LATE_S)
                report = torch.tensor([1.0, executor.rank], dtype=torch.float64)
                answer = executor.consult(report, 2, decide, num_calls=num_calls)
        finally:
            council_module.time = time
        return answer.tolist(), heard[-1] if heard else None


@pytest.mark.parametrize("late_rank", [0, 1])
def test_rank_0_hears_all_and_everybody_gets_its_answer(pool, late_rank):
    answers, hearings = zip(*pool.run(hold, late_rank, num_ranks=3), strict=True)
    assert answers == ([3.5, 3.5],) * 3
    assert hearings[0].reports.tolist() == [[1, 0], [1, 1], [1, 2]]
    assert hearings[1:] == (None, None)


@pytest.mark.parametrize("late_rank", [0, 1])
def test_neither_clocks_nor_a_late_rank_count_as_latency(pool, late_rank):
    hearing = pool.run(hold, late_rank, num_ranks=3)[0][1]
    assert hearing.latencies_s[0] == hearing.offsets_s[0] == 0
    assert all(0 < latency_s < LATE_S / 2 for latency_s in hearing.latencies_s[1:])
    assert hearing.offsets_s == pytest.approx([0, 3600, 7200], abs=LATE_S / 2)


def hold_alone() -> float:
    with Executor(timeout_s=20) as executor:
        report = torch.tensor([2.0], dtype=torch.float64)
        return executor.consult(report, 1, lambda hearing: 2 * hearing.reports[0]).item()


def test_one_rank_consults_itself(pool):
    assert pool.run(hold_alone, num_ranks=1) == [4.0]


def fail_to_decide() -> str:
    with Executor(timeout_s=3) as executor:
        try:
            executor.consult(torch.zeros(1, dtype=torch.float64), 1, lambda _hearing: 1 / 0)
        except ZeroDivisionError:
            return "cannot decide"
        except Exception as error:
            return type(error).__name__
        return "answered"


def test_nobody_waits_for_a_rank_that_failed_to_decide(pool):
    assert pool.run(fail_to_decide, num_ranks=3) == ["cannot decide", "PeerLost", "PeerLost"]


def meet_with_a_far_rank() -> tuple[list[float], list[int]] | None:
    """Rank 1 echoes late, always: those behind it must not be taken to be as far."""
    with Executor(timeout_s=20) as executor:
        attend = council_module.Council._attend

        def far(self) -> None:
            send = self._send
            self._send = lambda *message: (time.sleep(LATE_S), send(*message))
            attend(self)

        if executor.rank == 1:
            council_module.Council._attend = far
        heard: list[Hearing] = []
        try:
            for _ in range(3):
                executor.consult(
                    torch.zeros(1, dtype=torch.float64), 1, lambda hearing: heard.append(hearing) or hearing.reports[0]
                )
        finally:
            council_module.Council._attend = attend
        return (heard[-1].latencies_s, heard[-1].usual_latency_s) if heard else None


def test_near_ranks_are_looked_at_first(pool):
    latencies_s, usual_s = pool.run(meet_with_a_far_rank, num_ranks=4)[0]
    assert latencies_s[1] > LATE_S / 3
    assert max(latencies_s[2:]) < LATE_S / 3
    assert usual_s == sorted(latencies_s[1:])[1]
