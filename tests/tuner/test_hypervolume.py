"""Against an evolutionary search: the exact front has at least the hypervolume that pymoo's NSGA-II finds."""

from __future__ import annotations

import pytest
from benchmarks.front import RECORDED, costs_of, evolve, hypervolumes

pytest.importorskip("pymoo", reason="pymoo is not installed: pip install -e .[test]")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("problem", RECORDED["problems"], ids=lambda p: f"{p['num_ranks']}x{p['bandwidth_bps']:.0e}")
def test_the_exact_front_has_no_less_hypervolume_than_nsga2(problem):
    costs = costs_of(problem)
    exact, found = hypervolumes(costs, evolve(costs, seed=1))
    assert exact >= found - 1e-12
    assert found > 0.3 * exact  # it was a fair try
