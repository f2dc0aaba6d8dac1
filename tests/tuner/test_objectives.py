"""The times that plans add to a step."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headway.compress import Shape
from headway.exchange import ComputeSpeed, CostModel, Plan
from headway.network import Calibration, Link, Overhead
from headway.tuner import Objectives, all_plans

SHAPES = [Shape((40_000, 3_000)), Shape((500_000,)), Shape((40_000, 3_000)), Shape((7,))]
ARRIVALS_S = [0.0, 0.01, 0.011, 0.012]
PLANS = all_plans([0.002, 0.05])
SPEEDS = {plan.form: ComputeSpeed(call_s=1e-4, entry_s=1e-9, sent_s=1e-8) for plan in PLANS}
LINKS = [
    Link(latency_s=0.001, bandwidth_bps=1e9),
    Link(latency_s=0.05, bandwidth_bps=4e7),
    Link(latency_s=0.0, bandwidth_bps=1e11),
]


def exposed_s(arrivals_s: list[float], costs_s: list[float]) -> float:
    end = 0.0
    for arrival, cost in zip(arrivals_s, costs_s, strict=True):
        end = max(end, arrival) + cost
    return end - arrivals_s[-1]


@pytest.mark.parametrize("num_ranks", [2, 5, 8])
@pytest.mark.parametrize("link", LINKS)
def test_all_plans_at_once_agree_with_the_model_one_by_one(num_ranks, link):
    model = CostModel(num_ranks, Calibration(link=link, overhead=Overhead()), SPEEDS)
    compress_s, sync_s = Objectives(model, PLANS, SHAPES, ARRIVALS_S).at(link)
    for index, plan in enumerate(PLANS):
        if plan.fusion == "step":
            cost = model.of(plan, sum(SHAPES, Shape(())))
            assert compress_s[index] == pytest.approx(cost.compute_s)
            assert sync_s[index] == pytest.approx(cost.seconds - cost.compute_s)
        else:
            costs_s = [model.of(plan, shape).seconds for shape in SHAPES]
            assert compress_s[index] + sync_s[index] == pytest.approx(exposed_s(ARRIVALS_S, costs_s))


def test_one_link_may_be_asked_after_another():
    model = CostModel(4, Calibration(link=LINKS[0]), SPEEDS)
    objectives = Objectives(model, PLANS, SHAPES, ARRIVALS_S)
    first = objectives.at(LINKS[0])
    assert not np.allclose(objectives.at(LINKS[1])[1], first[1])
    assert np.array_equal(objectives.at(LINKS[0])[1], first[1])


def test_what_overlaps_with_backward_does_not_count():
    plan = Plan(exchange="dense", algorithm="ring", fusion="bucket")
    model = CostModel(4, Calibration(link=LINKS[0]))
    shapes = [Shape((500_000,)), Shape((1,))]
    last_s = model.of(plan, shapes[1]).seconds
    _, sync_s = Objectives(model, [plan], shapes, [0.0, 10.0]).at(LINKS[0])
    assert sync_s[0] == pytest.approx(last_s)


def test_regrouped_buckets_arrive_together():
    plan = Plan(exchange="dense", algorithm="ring", fusion="bucket")
    model = CostModel(4, Calibration(link=LINKS[0]))
    _, sync_s = Objectives(model, [plan], SHAPES, [0.0]).at(LINKS[0])
    assert sync_s[0] == pytest.approx(math.fsum(model.of(plan, shape).seconds for shape in SHAPES))


@pytest.mark.parametrize("fusion", ["bucket", "step"])
def test_dense_buckets_of_half_precision_take_half_the_time(fusion):
    plan = Plan(exchange="dense", algorithm="ring", fusion=fusion)
    link = Link(latency_s=0.0, bandwidth_bps=1e7)
    model = CostModel(4, Calibration(link=link, overhead=Overhead(message_s=0.0)))
    half, full = (
        Objectives(model, [plan], [Shape((500_000,), width), Shape((300_000,), width)], [0.0, 0.0]).at(link)[1][0]
        for width in (2, 4)
    )
    assert half == pytest.approx(full / 2, rel=0.01)
