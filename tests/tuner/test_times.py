"""Predicted times are corrected by measured ones."""

from __future__ import annotations

import math

import pytest

from headway.exchange import Plan
from headway.tuner import TimeModel

ONE, TWO = (Plan(exchange="allgather_topk", ratio=0.01, algorithm=name) for name in ("one_shot", "ring"))
LARGER = Plan(exchange="allgather_topk", ratio=0.1, algorithm="one_shot")
DENSE = Plan(exchange="dense", algorithm="native")


def test_nothing_is_corrected_at_first():
    assert TimeModel([ONE, DENSE]).factors().tolist() == [1.0, 1.0]


def test_what_came_counts_for_its_kind_at_any_ratio():
    times = TimeModel([ONE, LARGER, TWO])
    times.learn(ONE, 0.1, 0.2)
    times.learn(TWO, 0.1, 0.1)
    assert times.factors() == pytest.approx([2.0, 2.0, 1.0])


def test_what_is_untried_is_taken_to_be_off_as_the_rest_and_more_surely_with_more_of_them():
    times = TimeModel([ONE, TWO, DENSE])
    times.learn(ONE, 0.1, 0.4)
    assert times.factors()[2] == pytest.approx(4.0 ** (1 / 1.3))
    times.learn(TWO, 0.1, 0.4)
    assert times.factors()[2] == pytest.approx(4.0 ** (2 / 2.3))


def test_it_is_smoothed_bounded_and_halved_by_doubt():
    times = TimeModel([ONE])
    times.learn(ONE, 0.1, 100.0)
    assert times.factors()[0] == pytest.approx(4.0)
    times.learn(ONE, 0.1, 0.1)
    assert times.factors()[0] == pytest.approx(2.0)
    times.doubt()
    assert times.factors()[0] == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize(("predicted_s", "realised_s"), [(1e-5, 1.0), (0.1, math.nan)])
def test_what_tells_nothing_teaches_nothing(predicted_s, realised_s):
    times = TimeModel([ONE])
    times.learn(ONE, predicted_s, realised_s)
    assert times.factors()[0] == 1.0
