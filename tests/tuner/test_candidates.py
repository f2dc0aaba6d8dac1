"""The plans to choose from."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headway.collectives import ALGORITHMS
from headway.exchange import EXCHANGES, Plan
from headway.tuner import WarmUp, all_plans, plans_at, ratios_between


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


RATIOS = np.array(ratios_between(0.001, 0.1))
HEAVY, FLAT = np.minimum(1, (RATIOS / 0.1) ** 0.3), 3 * RATIOS


def least_ratio(step: int, gains: np.ndarray, strength: float = 2) -> float:
    return float(RATIOS[WarmUp(max_ratio=0.1, strength=strength).allows(step, RATIOS, gains)].min())


def test_the_warm_up_allows_smaller_ratios_as_training_goes_on_earlier_if_gradients_are_heavy_tailed():
    steps = range(400)
    heavy, flat = ([least_ratio(step, gains) for step in steps] for gains in (HEAVY, FLAT))
    assert heavy == sorted(heavy, reverse=True)
    assert flat == sorted(flat, reverse=True)
    assert all(mine <= other for mine, other in zip(heavy, flat, strict=True))
    assert heavy.index(RATIOS[0]) == 7  # a gain of 0.251 allows 4 steps of waiting: half of 8
    assert flat[8] > 0.05
    assert RATIOS[0] not in flat


def test_the_warm_up_never_asks_for_more_than_half_of_the_gradient_or_the_largest_ratio():
    assert least_ratio(0, HEAVY) == pytest.approx(0.01, rel=0.01)
    assert least_ratio(0, FLAT) == 0.1
    assert least_ratio(0, FLAT / 100) == 0.1


def test_no_warm_up_allows_everything_at_once():
    assert least_ratio(0, FLAT / 100, strength=0) == RATIOS[0]
