"""The times of all plans at once are those that the cost model gives one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headway.compress import Shape
from headway.exchange import ComputeSpeed, CostModel, Plan, kind_of
from headway.exchange.fusion import exposed_s
from headway.network import Calibration, Link, Overhead
from headway.tuner import Objectives, all_plans, ratios_between

SHAPES = [Shape((40_000, 3_000)), Shape((500_000,)), Shape((40_000, 3_000)), Shape((7,))]
ARRIVALS_S = [0.0, 0.01, 0.011, 0.012]
PLANS = all_plans([0.002, 0.05])
SPEEDS = {kind_of(plan): ComputeSpeed(call_s=1e-4, entry_s=1e-9, sent_s=1e-8) for plan in PLANS}
LINKS = [
    Link(latency_s=0.001, bandwidth_bps=1e9),
    Link(latency_s=0.05, bandwidth_bps=4e7),
    Link(latency_s=0.0, bandwidth_bps=1e11),
]


@pytest.mark.parametrize("num_ranks", [2, 5, 8])
@pytest.mark.parametrize("link", LINKS)
def test_columns_say_what_the_model_says_one_by_one(num_ranks, link):
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


def test_what_hides_behind_backward_does_not_count():
    plan = Plan(exchange="dense", algorithm="ring", fusion="bucket")
    model = CostModel(4, Calibration(link=LINKS[0]))
    shapes = [Shape((500_000,)), Shape((1,))]
    last_s = model.of(plan, shapes[1]).seconds
    _, sync_s = Objectives(model, [plan], shapes, [0.0, 10.0]).at(LINKS[0])
    assert sync_s[0] == pytest.approx(last_s)


def test_buckets_that_were_regrouped_come_all_at_once():
    plan = Plan(exchange="dense", algorithm="ring", fusion="bucket")
    model = CostModel(4, Calibration(link=LINKS[0]))
    _, sync_s = Objectives(model, [plan], SHAPES, [0.0]).at(LINKS[0])
    assert sync_s[0] == pytest.approx(math.fsum(model.of(plan, shape).seconds for shape in SHAPES))


def test_the_grid_is_log_even_and_has_every_form_once():
    ratios = ratios_between(0.001, 0.1)
    assert (ratios[0], ratios[-1], len(ratios)) == (0.001, 0.1, 21)
    assert np.allclose(np.diff(np.log(ratios)), math.log(10) / 10)
    plans = all_plans(ratios)
    assert len(set(plans)) == len(plans)
    assert {(plan.exchange, plan.values) for plan in plans if plan.exchange == "star_topk"} == {
        ("star_topk", "fp32"),
        ("star_topk", "fp16"),
    }
    assert {plan.bits for plan in plans if plan.exchange == "quantized"} == {4, 8}
    assert ratios_between(0.05, 0.05) == [0.05]
