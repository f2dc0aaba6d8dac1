"""The predicted cost of every option, and which is best."""

from __future__ import annotations

import pytest

from headway.compress import Shape
from headway.exchange import EXCHANGES, ComputeSpeed, CostModel, Plan
from headway.network import Calibration, Link
from headway.tuner import Comparison

SHAPE = Shape((1_000_000,))
SPEEDS = {Plan(exchange=name).form: ComputeSpeed(entry_s=1e-8) for name in EXCHANGES if name != "dense"}
FAR = CostModel(8, Calibration(link=Link(latency_s=0.05, bandwidth_bps=4e7)), SPEEDS)
NEAR = CostModel(8, Calibration(link=Link(latency_s=1e-5, bandwidth_bps=1e11)), SPEEDS)


def test_the_best_is_the_fastest_candidate():
    comparison = Comparison(FAR, SHAPE, 0.01)
    fastest = min((o for o in comparison.options if o.plan.description.is_candidate), key=lambda o: o.cost.seconds)
    assert comparison.best is fastest
    assert comparison.best.plan.exchange != comparison.second_best.plan.exchange
    assert comparison.best.cost.seconds <= comparison.second_best.cost.seconds
    assert (comparison.plain.plan.exchange, comparison.plain.plan.algorithm) == ("dense", "native")
    assert comparison.best.cost.seconds < comparison.plain.cost.seconds / 5


def test_on_a_network_that_costs_nothing_dense_and_native_is_best_at_ratio_one():
    best = Comparison(NEAR, SHAPE, 1.0).best
    assert (best.plan.exchange, best.plan.algorithm) == ("dense", "native")


def test_one_worker_needs_no_time():
    alone = CostModel(1, Calibration(link=Link(latency_s=0.1, bandwidth_bps=1e6)))
    assert Comparison(alone, SHAPE, 0.01).best.cost.seconds == 0


@pytest.mark.parametrize("ratio", [0.0, 2.0])
def test_an_invalid_ratio_is_rejected(ratio):
    with pytest.raises(ValueError, match="ratio is"):
        Comparison(FAR, SHAPE, ratio)
