"""The predicted cost of exchanges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headway.collectives import Executor
from headway.compress import BucketMemory, Shape
from headway.exchange import (
    EXCHANGES,
    ComputeSpeed,
    CostModel,
    CostTable,
    ExecutorChannel,
    Job,
    Plan,
    exchange_of,
)
from headway.network import Calibration, Link, Overhead

SHAPE = Shape((3000, 20, 500))
LINK = Link(latency_s=0.01, bandwidth_bps=1e8)
MODEL = CostModel(3, Calibration(link=LINK))


def send(plan: Plan, dtype: torch.dtype = torch.float32) -> int:
    """Return how many bytes the busiest rank says it sent."""
    with Executor(timeout_s=20) as executor:
        channel = ExecutorChannel(executor, MODEL)
        gradient = torch.randn(SHAPE.numel, generator=torch.Generator().manual_seed(executor.rank)).to(dtype)
        exchange_of(plan).run(Job(step=0, bucket=0, gradient=gradient, memory=BucketMemory(SHAPE)), channel)
        return channel.read_meter().wire_bytes


@pytest.mark.pool
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_the_bytes_predicted_are_those_sent(pool, exchange):
    plan = Plan(exchange=exchange, ratio=0.05, algorithm="native", broadcast="two_shot")
    assert MODEL.of(plan, SHAPE).wire_bytes == pytest.approx(max(pool.run(send, plan, num_ranks=3)), abs=16)


@pytest.mark.pool
@pytest.mark.parametrize(
    ("dtype", "values"),
    [(torch.bfloat16, "fp32"), (torch.bfloat16, "fp16"), (torch.float16, "fp32"), (torch.float64, "fp32")],
)
def test_a_dense_exchange_costs_what_the_type_of_the_gradient_takes(pool, dtype, values):
    plan = Plan(exchange="dense", values=values, algorithm="ring")
    shape = Shape(SHAPE.numels, dtype.itemsize)
    predicted = MODEL.of(plan, shape).wire_bytes
    assert predicted == pytest.approx(max(pool.run(send, plan, dtype, num_ranks=3)), abs=16)
    assert predicted == pytest.approx(2 * 2 / 3 * SHAPE.numel * (2 if values == "fp16" else dtype.itemsize), rel=0.01)


def test_only_dense_sums_follow_the_type_of_the_gradient():
    """What is compressed is float32, whatever the gradient is."""
    for name in EXCHANGES:
        half, full = (MODEL.of(Plan(exchange=name), Shape(SHAPE.numels, width)).wire_bytes for width in (2, 4))
        assert half == full if name != "dense" else half == full // 2


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_the_time_is_the_sum_of_its_parts_and_auto_is_cheapest(exchange):
    auto = MODEL.of(Plan(exchange=exchange), SHAPE)
    assert auto.seconds == pytest.approx(auto.latency_s + auto.bandwidth_s + auto.overhead_s + auto.compute_s)
    for algorithm in ("native", "one_shot", "recursive_doubling"):
        assert auto.seconds <= MODEL.of(Plan(exchange=exchange, algorithm=algorithm), SHAPE).seconds + 1e-12


def test_each_part_follows_its_cause():
    plan = Plan(exchange="star_topk", ratio=0.1, algorithm="ring", broadcast="tree")
    far = CostModel(3, Calibration(link=Link(latency_s=0.02, bandwidth_bps=1e8))).of(plan, SHAPE)
    narrow = CostModel(3, Calibration(link=Link(latency_s=0.01, bandwidth_bps=5e7))).of(plan, SHAPE)
    busy = CostModel(3, Calibration(link=LINK, overhead=Overhead(message_s=2.6e-4))).of(plan, SHAPE)
    slow = CostModel(3, Calibration(link=LINK), {plan.form: ComputeSpeed(call_s=1.0, sent_s=0.1)}).of(plan, SHAPE)
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


def test_a_table_agrees_with_the_model_on_any_link():
    plans = [
        Plan(exchange=name, ratio=0.02, algorithm=algorithm) for name in EXCHANGES for algorithm in ("auto", "native")
    ]
    shapes = [SHAPE, Shape((50_000,)), SHAPE]
    speeds = {plan.form: ComputeSpeed(call_s=1e-3, entry_s=1e-8, sent_s=1e-7) for plan in plans}
    model = CostModel(5, Calibration(link=LINK), speeds)
    table = CostTable(model, plans, shapes)
    for link in (LINK, Link(latency_s=1e-4, bandwidth_bps=1e10)):
        costs = [[model.on(link).of(plan, shape) for shape in shapes] for plan in plans]
        compute_s = [[cost.compute_s for cost in row] for row in costs]
        sync_s = [[cost.seconds - cost.compute_s for cost in row] for row in costs]
        np.testing.assert_allclose(table.compute_s, compute_s, rtol=1e-9)
        np.testing.assert_allclose(table.sync_s(link), sync_s, rtol=1e-6)
