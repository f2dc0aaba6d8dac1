"""The plans to choose from."""

from __future__ import annotations

import math

import numpy as np

from headway.collectives import ALGORITHMS
from headway.exchange import EXCHANGES, Plan
from headway.tuner import all_plans, plans_at, ratios_between


def test_candidates_are_every_exchange_by_every_algorithm():
    found = [(plan.exchange, plan.algorithm) for plan in plans_at(0.01)]
    assert len(set(found)) == len(found)
    for exchange in EXCHANGES:
        known = ALGORITHMS[Plan(exchange=exchange).collective]
        assert {algorithm for name, algorithm in found if name == exchange} == {"native", *known}


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
    assert {plan.values for plan in plans if plan.exchange == "allgather_topk"} == {"int8", "int4", "sign"}
    assert {plan.bits for plan in plans if plan.exchange == "quantized"} == {4, 8}
    assert ratios_between(0.05, 0.05) == [0.05]
