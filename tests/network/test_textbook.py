"""The textbook's costs and its closed-form rules."""

from __future__ import annotations

import itertools
import math

import pytest

from headway.network import Link, Textbook

GRID = [
    Textbook(num_ranks=n, num_bytes=m, ratio=c, link=Link(latency_s=alpha, bandwidth_bps=bps))
    for n, m, c, alpha, bps in itertools.product(
        (2, 3, 4, 5, 8, 13, 16, 64, 1000),
        (4e4, 6.65e6, 1e8, 4e9),
        (0.001, 0.01, 0.1, 1.0),
        (1e-6, 1e-4, 1e-3, 0.02, 0.3),
        (1e7, 1e9, 2.5e10),
    )
]


def seconds(problem: Textbook, rounds: float, payloads: float, num_bytes: float) -> float:
    return rounds * problem.link.latency_s + payloads * num_bytes * 8 / problem.link.bandwidth_bps


@pytest.mark.parametrize("n", [2, 6, 8, 1000])
def test_the_rows_are_those_of_the_table(n):
    p = Textbook(num_ranks=n, num_bytes=1e8, ratio=0.01, link=Link(latency_s=0.004, bandwidth_bps=2e10))
    log, m, sent = math.log2(n), 1e8, 1e6
    assert p.parameter_server_s == pytest.approx(seconds(p, 2, 2 * (n - 1), m))
    assert p.dense_ring_s == pytest.approx(seconds(p, 2 * (n - 1), 2 * (n - 1) / n, m))
    assert p.dense_tree_s == pytest.approx(seconds(p, 2 * log, 2 * log, m))
    assert p.all_gather_s == pytest.approx(seconds(p, log, n - 1, m))
    assert p.allgather_topk_s == pytest.approx(seconds(p, log, 2 * (n - 1), sent))
    assert p.ar_topk_ring_s == pytest.approx(seconds(p, 2 * (n - 1) + log, 2 * (n - 1) / n + log, sent))
    assert p.ar_topk_tree_s == pytest.approx(seconds(p, 3 * log, 3 * log, sent))
    assert p.var_all_gather_s == pytest.approx(log * 0.004, rel=0.01)


def cheapest(problem: Textbook) -> str:
    compressed = ("allgather_topk", "ar_topk_ring", "ar_topk_tree")
    return min(compressed, key=lambda name: problem.costs_s[name])


def test_the_rules_pick_the_cheapest_everywhere():
    differing = [
        problem
        for problem in GRID
        if problem.costs_s[problem.best_compressed] > problem.costs_s[cheapest(problem)] * (1 + 1e-12)
    ]
    assert differing == []
    assert {problem.best_compressed for problem in GRID} == {"allgather_topk", "ar_topk_ring", "ar_topk_tree"}


def test_each_rule_agrees_with_the_two_costs_it_compares():
    for p in GRID:
        for rule, one, other in (
            (p.ring_beats_tree, p.ar_topk_ring_s, p.ar_topk_tree_s),
            (p.ring_beats_allgather, p.ar_topk_ring_s, p.allgather_topk_s),
            (p.tree_beats_allgather, p.ar_topk_tree_s, p.allgather_topk_s),
        ):
            assert rule == (one < other) or one == pytest.approx(other, rel=1e-12)


def test_with_two_ranks_allgather_is_never_beaten():
    assert {problem.best_compressed for problem in GRID if problem.num_ranks == 2} == {"allgather_topk"}


def test_one_rank_costs_nothing():
    alone = Textbook(num_ranks=1, num_bytes=1e8, ratio=0.01, link=Link(latency_s=1.0, bandwidth_bps=1.0))
    assert set(alone.costs_s.values()) == {0.0}
    assert alone.best_compressed == "allgather_topk"


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"num_ranks": 0}, "num_ranks is 0"), ({"num_bytes": -1}, "num_bytes is -1"), ({"ratio": 2}, "ratio is 2")],
)
def test_impossible_values_are_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        Textbook(
            **{"num_ranks": 8, "num_bytes": 1e8, "ratio": 0.01, "link": Link(latency_s=0.1, bandwidth_bps=1e9)}
            | changes
        )
