"""What every choice would take, and which is best."""

from __future__ import annotations

import numpy as np
import pytest

from headway.collectives import ALGORITHMS
from headway.compress import Shape
from headway.exchange import EXCHANGES, ComputeSpeed, CostModel, Plan, kind_of
from headway.network import Calibration, Link
from headway.tuner import Outlook, candidates, find_regimes

SHAPE = Shape((1_000_000,))
SPEEDS = {kind_of(Plan(exchange=name)): ComputeSpeed(entry_s=1e-8) for name in EXCHANGES if name != "dense"}
FAR = CostModel(8, Calibration(link=Link(latency_s=0.05, bandwidth_bps=4e7)), SPEEDS)
NEAR = CostModel(8, Calibration(link=Link(latency_s=1e-5, bandwidth_bps=1e11)), SPEEDS)


def test_candidates_are_every_exchange_by_every_algorithm():
    found = [(plan.exchange, plan.algorithm) for plan in candidates(0.01)]
    assert len(set(found)) == len(found)
    for exchange in EXCHANGES:
        known = ALGORITHMS[Plan(exchange=exchange).collective]
        assert {algorithm for name, algorithm in found if name == exchange} == {"native", *known}


def test_the_best_is_the_fastest_that_learns():
    outlook = Outlook(FAR, SHAPE, 0.01)
    fastest = min((o for o in outlook.options if o.plan.exchange != "randomk"), key=lambda o: o.cost.seconds)
    assert outlook.best is fastest
    assert outlook.best.plan.exchange != outlook.second_best.plan.exchange
    assert outlook.best.cost.seconds <= outlook.second_best.cost.seconds
    assert (outlook.plain.plan.exchange, outlook.plain.plan.algorithm) == ("dense", "native")
    assert outlook.best.cost.seconds < outlook.plain.cost.seconds / 5


def test_on_a_network_that_costs_nothing_dense_and_native_is_best_at_ratio_one():
    best = Outlook(NEAR, SHAPE, 1.0).best
    assert (best.plan.exchange, best.plan.algorithm) == ("dense", "native")


def test_regimes_are_what_the_model_says_point_by_point():
    latencies_s, bandwidths_bps = (1e-4, 0.05), (1e7, 1e9, 1e11)
    found = find_regimes(FAR, SHAPE, 0.01, latencies_s, bandwidths_bps)
    assert found.speedups.shape == (2, 3)
    assert found.winners[0][2][0] == "dense"
    assert found.winners[1][0][0] in ("allgather_topk", "star_topk")
    assert np.all(found.speedups > 0.99)
    assert found.speedups[0, 0] > found.speedups[0, 2]
    assert found.num_ranks == 8


def test_one_worker_is_no_trouble():
    alone = CostModel(1, Calibration(link=Link(latency_s=0.1, bandwidth_bps=1e6)))
    assert Outlook(alone, SHAPE, 0.01).best.cost.seconds == 0
    assert find_regimes(alone, SHAPE, 0.01, (0.1,), (1e6,)).speedups.tolist() == [[1.0]]


@pytest.mark.parametrize("ratio", [0.0, 2.0])
def test_a_ratio_that_cannot_be_is_refused(ratio):
    with pytest.raises(ValueError, match="ratio is"):
        Outlook(FAR, SHAPE, ratio)
