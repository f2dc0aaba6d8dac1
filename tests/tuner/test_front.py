"""The front is exact, whatever the points; and nothing that an evolutionary search finds is better."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.tuner import pareto_front


def slow_front(costs: np.ndarray) -> list[int]:
    """By the definition; of equal rows the first."""
    found = []
    for index, row in enumerate(costs):
        dominated = ((costs <= row).all(axis=1) & (costs < row).any(axis=1)).any()
        repeated = (costs[:index] == row).all(axis=1).any()
        if not dominated and not repeated:
            found.append(index)
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 700), st.integers(1, 4), st.sampled_from([3, 10, 10**6]))
def test_it_is_what_the_definition_says(seed, num_points, num_objectives, num_levels):
    costs = np.random.default_rng(seed).integers(0, num_levels, (num_points, num_objectives)).astype(np.float64)
    assert pareto_front(costs).tolist() == slow_front(costs)


def test_scales_do_not_matter():
    costs = np.random.default_rng(0).random((500, 3)) * [1e-9, 1.0, 1e9]
    assert pareto_front(costs).tolist() == slow_front(costs)


def test_sums_that_rounding_makes_equal_do_not_let_a_dominated_point_in():
    costs = np.array([[1.0, 1e-30], [1.0, 0.0], [0.0, 2.0]])
    assert pareto_front(costs).tolist() == [1, 2]


@pytest.mark.parametrize("costs", [np.ones((400, 3)), np.array([[1.0, 2.0, 3.0]])])
def test_equal_points_count_once(costs):
    assert pareto_front(costs).tolist() == [0]
