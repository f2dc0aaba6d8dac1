"""What exchanges are foretold to take and to send."""

from __future__ import annotations

import time

import pytest
import torch

from headway.collectives import Executor
from headway.compress import BucketMemory, Shape
from headway.exchange import (
    EXCHANGES,
    ComputeSpeed,
    CostModel,
    ExecutorChannel,
    Job,
    Plan,
    exchange_of,
    kind_of,
    rehearsal,
    rehearse,
    warm_up,
)
from headway.network import Calibration, Link, Overhead

SHAPE = Shape((3000, 20, 500))
LINK = Link(latency_s=0.01, bandwidth_bps=1e8)
MODEL = CostModel(3, Calibration(link=LINK))


def send(plan: Plan) -> int:
    """Return how many bytes the busiest rank says it sent."""
    with Executor(timeout_s=20) as executor:
        channel = ExecutorChannel(executor, MODEL)
        gradient = torch.randn(SHAPE.numel, generator=torch.Generator().manual_seed(executor.rank))
        exchange_of(plan).run(Job(step=0, bucket=0, gradient=gradient, memory=BucketMemory(SHAPE)), channel)
        return channel.read_meter().wire_bytes


@pytest.mark.pool
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_the_bytes_foretold_are_those_sent(pool, exchange):
    plan = Plan(exchange=exchange, ratio=0.05, algorithm="native", broadcast="two_shot")
    assert MODEL.of(plan, SHAPE).wire_bytes == pytest.approx(max(pool.run(send, plan, num_ranks=3)), abs=16)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_the_time_is_the_sum_of_its_parts_and_auto_takes_least(exchange):
    auto = MODEL.of(Plan(exchange=exchange), SHAPE)
    assert auto.seconds == pytest.approx(auto.latency_s + auto.bandwidth_s + auto.overhead_s + auto.compute_s)
    for algorithm in ("native", "one_shot", "recursive_doubling"):
        assert auto.seconds <= MODEL.of(Plan(exchange=exchange, algorithm=algorithm), SHAPE).seconds + 1e-12


def test_each_part_follows_what_it_is_made_of():
    plan = Plan(exchange="star_topk", ratio=0.1, algorithm="ring", broadcast="tree")
    far = CostModel(3, Calibration(link=Link(latency_s=0.02, bandwidth_bps=1e8))).of(plan, SHAPE)
    narrow = CostModel(3, Calibration(link=Link(latency_s=0.01, bandwidth_bps=5e7))).of(plan, SHAPE)
    busy = CostModel(3, Calibration(link=LINK, overhead=Overhead(message_s=2.6e-4))).of(plan, SHAPE)
    slow = CostModel(3, Calibration(link=LINK), {kind_of(plan): ComputeSpeed(call_s=1.0, sent_s=0.1)}).of(plan, SHAPE)
    here = MODEL.of(plan, SHAPE)
    assert here.latency_s == pytest.approx((1 + 4) * 0.01)
    assert far.latency_s == pytest.approx(2 * here.latency_s)
    assert narrow.bandwidth_s == pytest.approx(2 * here.bandwidth_s)
    assert busy.overhead_s == pytest.approx(2 * here.overhead_s, rel=0.01)
    assert slow.compute_s == pytest.approx(1.0 + 352 * 0.1)
    assert here.algorithms == ("tree", "ring")


def test_alone_an_exchange_takes_no_time():
    model = CostModel(1, Calibration(link=LINK), {("dense", "fp32", 0): ComputeSpeed(call_s=1.0)})
    assert model.of(Plan(), SHAPE).seconds == 0


class Clock:
    """Stands in for the module `time`: an exchange takes what it is scripted to."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.mark.parametrize("num_ranks", [4, 64])
def test_a_rehearsal_tells_calls_entries_and_sent_ones_apart(monkeypatch, num_ranks):
    clock = Clock()
    speed = ComputeSpeed(call_s=0.001, entry_s=2e-9, sent_s=3e-8)

    class Scripted:
        def __init__(self, plan: Plan) -> None:
            self.ratio = plan.ratio

        def run(self, job: Job, stage: rehearsal.Stage) -> None:
            num_sent = round(self.ratio * job.gradient.numel())
            clock.now += speed.seconds(job.gradient.numel(), num_sent * stage.num_ranks)

    monkeypatch.setattr(rehearsal, "time", clock)
    monkeypatch.setattr(rehearsal, "exchange_of", Scripted)
    found = rehearse(Plan(exchange="allgather_topk"), num_ranks)
    assert found.call_s == pytest.approx(speed.call_s, rel=0.01)
    assert found.entry_s == pytest.approx(speed.entry_s, rel=0.01)
    assert found.sent_s == pytest.approx(speed.sent_s * num_ranks, rel=0.01)


def warm_up_all() -> dict:
    with Executor(timeout_s=20) as executor:
        return warm_up(executor, [Plan(exchange="star_topk", ratio=r) for r in (0.1, 0.2)] + [Plan(values="fp16")])


@pytest.mark.pool
def test_ranks_agree_on_how_fast_exchanges_compute(pool):
    first, second = pool.run(warm_up_all, num_ranks=2)
    assert first == second
    assert set(first) == {("star_topk", "fp32", 0), ("dense", "fp16", 0)}
    assert all(speed.seconds(1 << 20, 1 << 14) > 0 for speed in first.values())


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_every_exchange_can_be_rehearsed(exchange):
    start = time.perf_counter()
    speed = rehearse(Plan(exchange=exchange), 4)
    assert 0 < speed.seconds(1 << 16, 1 << 10) < time.perf_counter() - start
