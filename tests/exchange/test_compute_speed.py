"""How fast exchanges compute."""

from __future__ import annotations

import time

import pytest

from headway.exchange import EXCHANGES, ComputeSpeed, Job, Plan, compute_speed, measure_speed


class Clock:
    """Stands in for the module `time`: an exchange takes the scripted time."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.mark.parametrize("num_ranks", [4, 64])
def test_calls_entries_and_sent_entries_are_told_apart(monkeypatch, num_ranks):
    clock = Clock()
    speed = ComputeSpeed(call_s=0.001, entry_s=2e-9, sent_s=3e-8)

    class Scripted:
        def __init__(self, plan: Plan) -> None:
            self.ratio = plan.ratio

        def run(self, job: Job, channel: compute_speed.NullChannel) -> None:
            num_sent = round(self.ratio * job.gradient.numel())
            clock.now += speed.seconds(job.gradient.numel(), num_sent * channel.num_ranks)

    monkeypatch.setattr(compute_speed, "time", clock)
    monkeypatch.setattr(compute_speed, "exchange_of", Scripted)
    found = measure_speed(Plan(exchange="allgather_topk"), num_ranks)
    assert found.call_s == pytest.approx(speed.call_s, rel=0.01)
    assert found.entry_s == pytest.approx(speed.entry_s, rel=0.01)
    assert found.sent_s == pytest.approx(speed.sent_s * num_ranks, rel=0.01)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_every_exchange_can_be_timed(exchange):
    start = time.perf_counter()
    speed = measure_speed(Plan(exchange=exchange), 4)
    assert 0 < speed.seconds(1 << 16, 1 << 10) < time.perf_counter() - start
