"""The regime map."""

from __future__ import annotations

import numpy as np

from headway.compress import Shape
from headway.exchange import EXCHANGES, ComputeSpeed, CostModel, Plan
from headway.network import Calibration, Link
from headway.tuner import contenders, find_regimes

SHAPE = Shape((1_000_000,))
SPEEDS = {Plan(exchange=name).form: ComputeSpeed(entry_s=1e-8) for name in EXCHANGES if name != "dense"}
FAR = CostModel(8, Calibration(link=Link(latency_s=0.05, bandwidth_bps=4e7)), SPEEDS)


def test_variants_of_others_are_not_contenders():
    assert contenders() == ("dense", "allgather_topk", "star_topk", "union_topk", "quantized")


def test_regimes_are_what_the_model_says_point_by_point():
    latencies_s, bandwidths_bps = (1e-4, 0.05), (1e7, 1e9, 1e11)
    found = find_regimes(FAR, SHAPE, 0.01, latencies_s, bandwidths_bps)
    assert found.speedups.shape == (2, 3)
    assert found.winners[0][2][0] == "dense"
    assert found.winners[1][0][0] in ("allgather_topk", "star_topk", "union_topk")
    assert np.all(found.speedups > 0.99)
    assert found.speedups[0, 0] > found.speedups[0, 2]
    assert found.num_ranks == 8


def test_one_worker_is_no_faster_than_another():
    alone = CostModel(1, Calibration(link=Link(latency_s=0.1, bandwidth_bps=1e6)))
    assert find_regimes(alone, SHAPE, 0.01, (0.1,), (1e6,)).speedups.tolist() == [[1.0]]
