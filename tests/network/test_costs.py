"""Predicted costs of collectives."""

from __future__ import annotations

import math

import pytest

from headway.collectives import ALGORITHMS, NATIVE, Collective, build_for, critical_path
from headway.network import CollectiveTable, Cost, Link, Overhead, cheapest_algorithm, collective_cost

LINK = Link(latency_s=0.02, bandwidth_bps=1e8)
NOTHING = Overhead(message_s=0.0, byte_s=0.0)
EVERY = [(collective, name) for collective, known in ALGORITHMS.items() for name in known]
SHARING = {
    (Collective.ALL_REDUCE, "tree"),
    (Collective.ALL_GATHER, "bruck"),
    (Collective.BROADCAST, "tree"),
    (Collective.BROADCAST, "scatter_gather"),
}
"""Algorithms in which a rank has several concurrent transfers, one of which is waited for."""


@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_without_overhead_it_is_the_alpha_beta_time_with_shared_nics(collective, name):
    for num_ranks in (2, 4, 8, 16):
        schedule = build_for(collective, name, num_ranks, 1_000_000)
        path = critical_path(schedule)
        predicted = collective_cost(collective, name, num_ranks, 1_000_000, LINK, NOTHING)
        assert predicted.latencies == path.num_rounds
        assert predicted.path_bytes >= path.num_payloads * 1_000_000 - 1e-3
        if (collective, name) not in SHARING:
            assert predicted.path_bytes == pytest.approx(path.num_payloads * 1_000_000, rel=0.01)


@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.ALL_GATHER])
def test_native_rings_pay_two_latencies_a_round_and_hide_bytes_behind_them(collective):
    rounds = {Collective.ALL_REDUCE: 14, Collective.ALL_GATHER: 7}[collective]
    small = collective_cost(collective, NATIVE, 8, 8, LINK, NOTHING)
    assert small.seconds(LINK) == pytest.approx(2 * rounds * LINK.latency_s, rel=0.01)
    large = collective_cost(collective, NATIVE, 8, 100_000_000, LINK, NOTHING)
    payloads = critical_path(build_for(collective, "ring", 8, 0)).num_payloads
    bytes_s = payloads * 100_000_000 * 8 / LINK.bandwidth_bps
    assert bytes_s < large.seconds(LINK) < bytes_s + 2 * rounds * LINK.latency_s


def test_overhead_counts_calls_rounds_messages_and_bytes():
    overhead = Overhead(message_s=1e-3, byte_s=1e-9)
    found = collective_cost(Collective.ALL_GATHER, "one_shot", 4, 1000, LINK, overhead)
    assert found.overhead_s == pytest.approx((4 + 0.5 + 6) * 1e-3 + 6 * 1000 * 1e-9)
    assert collective_cost(Collective.ALL_GATHER, NATIVE, 4, 1000, LINK, overhead).overhead_s == pytest.approx(3.9e-3)


@pytest.mark.parametrize("collective", list(ALGORITHMS))
@pytest.mark.parametrize("name", [NATIVE, "one_shot"])
def test_one_rank_pays_nothing(collective, name):
    assert collective_cost(collective, name, 1, 1000, LINK, Overhead()).seconds(LINK) == 0


def test_the_cheapest_is_native_on_a_fast_network_and_ours_on_a_slow_one():
    near, far = Link(latency_s=3e-5, bandwidth_bps=1e10), Link(latency_s=0.05, bandwidth_bps=4e7)
    assert cheapest_algorithm(Collective.ALL_REDUCE, 2, 100_000_000, near, Overhead()) == NATIVE
    assert cheapest_algorithm(Collective.ALL_REDUCE, 8, 10_000, far, Overhead()) == "one_shot"
    assert cheapest_algorithm(Collective.ALL_REDUCE, 8, 10_000_000, far, Overhead()) == "two_shot"
    assert cheapest_algorithm(Collective.ALL_GATHER, 8, 10_000, far, Overhead()) == "one_shot"
    assert (
        cheapest_algorithm(Collective.BROADCAST, 8, 1 << 24, Link(latency_s=1e-3, bandwidth_bps=1e7), NOTHING)
        == "chain"
    )


def test_an_ideal_link_costs_nothing():
    ideal = Link(latency_s=0.0, bandwidth_bps=math.inf)
    assert collective_cost(Collective.ALL_REDUCE, NATIVE, 8, 1000, ideal, NOTHING).seconds(ideal) == 0


def test_a_table_has_the_costs_of_the_same_collectives_one_by_one():
    names = [(collective, name) for collective in ALGORITHMS for name in ("auto", NATIVE, "one_shot")]
    keys = [(collective, name, num_bytes) for collective, name in names for num_bytes in (100, 1_000_000)]
    seconds = CollectiveTable([*keys, keys[0]], 8, Overhead()).seconds(LINK)
    for (collective, name, num_bytes), found in zip(keys, seconds, strict=True):
        algorithm = cheapest_algorithm(collective, 8, num_bytes, LINK, Overhead()) if name == "auto" else name
        assert found == pytest.approx(
            collective_cost(collective, algorithm, 8, num_bytes, LINK, Overhead()).seconds(LINK)
        )
    assert CollectiveTable([], 8, Overhead()).seconds(LINK).size == 0


def test_a_cost_is_the_sum_of_its_parts():
    assert Cost(latency_s=1.0, bandwidth_s=2.0, overhead_s=4.0, compute_s=8.0, wire_bytes=100).seconds == 15.0
    assert Cost(latency_s=1.0, bandwidth_s=2.0, overhead_s=4.0).seconds == 7.0


@pytest.mark.parametrize(("name", "value"), [("message_s", -1.0), ("byte_s", math.nan)])
def test_impossible_overhead_is_rejected(name, value):
    with pytest.raises(ValueError, match=f"{name} is"):
        Overhead(**{name: value})
