"""The cost stated in each docstring, against what the schedule costs."""

from __future__ import annotations

import math
import re

import pytest

from headway.collectives import ALGORITHMS, Collective, build, cheapest, cost, critical_path, neighbour_exchange
from headway.lab import Link

EVERY = [(collective, name) for collective, known in ALGORITHMS.items() for name in known]
STATED = re.compile(r"\*\*Cost\*\*: (?:at most )?``(.+?)``\s+rounds?,\s+(?:at\s+most\s+)?``(.+?)``\s+payloads")
CHAIN_CHUNKS = 16


def stated_cost(docstring: str, num_ranks: int) -> tuple[float, float]:
    """Evaluate the two formulas of a docstring."""
    formulas = STATED.search(docstring)
    assert formulas, f"no cost stated in: {docstring}"
    power = 1 << (num_ranks.bit_length() - 1)
    names = {
        "N": num_ranks,
        "P": power,
        "fold": int(power != num_ranks),
        "chunks": CHAIN_CHUNKS,
        "log2": math.log2,
        "ceil": math.ceil,
        "floor": math.floor,
    }
    return tuple(eval(formula, {"__builtins__": {}}, names) for formula in formulas.groups())


@pytest.mark.parametrize("num_ranks", [2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_the_stated_cost_is_the_counted_one_for_powers_of_two(collective, name, num_ranks):
    docstring = ALGORITHMS[collective][name].__doc__
    path = critical_path(build(collective, name, num_ranks))
    rounds, payloads = stated_cost(docstring, num_ranks)
    if "at most" in docstring.split("**Cost**")[1].split(".")[0]:
        assert path.num_rounds <= rounds
        assert path.num_payloads == pytest.approx(payloads, rel=0.1)
    else:
        assert path.num_rounds == rounds
        assert path.num_payloads == pytest.approx(payloads)


@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_the_stated_cost_is_never_exceeded(collective, name):
    for num_ranks in range(2, 65):
        path = critical_path(build(collective, name, num_ranks))
        rounds, payloads = stated_cost(ALGORITHMS[collective][name].__doc__, num_ranks)
        assert path.num_rounds <= rounds, num_ranks
        assert path.num_payloads <= payloads + 1e-9, num_ranks


@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_alone_there_is_nothing_to_do(collective, name):
    schedule = build(collective, name, 1)
    assert schedule.rounds == ()
    assert cost(schedule, Link(latency_s=1.0, bandwidth_bps=1e6), 1000) == 0


def test_a_neighbour_exchange_costs_its_degree_whatever_the_number_of_ranks():
    for num_ranks in (3, 8, 64):
        ring = neighbour_exchange([[(rank - 1) % num_ranks, (rank + 1) % num_ranks] for rank in range(num_ranks)])
        path = critical_path(ring)
        assert (path.num_rounds, path.num_payloads) == (1, 2)


@pytest.mark.parametrize("num_ranks", [2, 4, 8, 16])
def test_the_textbook_rows_come_out(num_ranks):
    """The modern and textbook rows of the literature, which are stated for powers of two."""
    alpha, beta, num_bytes, log = 0.01, 8e-8, 1_000_000, math.log2(num_ranks)
    link = Link(latency_s=alpha, bandwidth_bps=8 / beta)
    share = (num_ranks - 1) / num_ranks
    textbook = {
        (Collective.ALL_REDUCE, "star"): 2 * alpha + 2 * (num_ranks - 1) * num_bytes * beta,
        (Collective.ALL_REDUCE, "ring"): 2 * (num_ranks - 1) * alpha + 2 * share * num_bytes * beta,
        (Collective.ALL_REDUCE, "tree"): 2 * alpha * log + 2 * log * num_bytes * beta,
        (Collective.ALL_REDUCE, "recursive_doubling"): alpha * log + log * num_bytes * beta,
        (Collective.ALL_REDUCE, "halving_doubling"): 2 * alpha * log + 2 * share * num_bytes * beta,
        (Collective.BROADCAST, "tree"): alpha * log + log * num_bytes * beta,
        (Collective.ALL_GATHER, "bruck"): alpha * log + (num_ranks - 1) * num_bytes * beta,
        (Collective.ALL_GATHER, "recursive_doubling"): alpha * log + (num_ranks - 1) * num_bytes * beta,
    }
    for (collective, name), seconds in textbook.items():
        assert cost(build(collective, name, num_ranks), link, num_bytes) == pytest.approx(seconds), name


@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_links_that_are_all_alike_cost_the_same_pair_by_pair(collective, name):
    link = Link(latency_s=0.02, bandwidth_bps=1e8)
    for num_ranks in (2, 4, 8):
        schedule = build(collective, name, num_ranks)
        by_pairs = cost(schedule, lambda _src, _dst: link, 1_000_000)
        assert by_pairs <= cost(schedule, link, 1_000_000) + 1e-9
        assert by_pairs == pytest.approx(cost(schedule, link, 1_000_000), rel=0.1)


def test_one_slow_pair_hurts_only_those_who_use_it():
    fast, slow = Link(latency_s=0.001, bandwidth_bps=1e9), Link(latency_s=0.1, bandwidth_bps=1e9)

    def link(src: int, dst: int) -> Link:
        return slow if {src, dst} == {0, 3} else fast

    ring = build(Collective.ALL_REDUCE, "ring", 6)
    assert cost(ring, link, 6000) == pytest.approx(cost(ring, fast, 6000))
    assert cost(build(Collective.ALL_REDUCE, "one_shot", 6), link, 6000) == pytest.approx(0.1, rel=0.01)
    assert cost(build(Collective.ALL_REDUCE, "star", 6), link, 6000) == pytest.approx(0.2, rel=0.01)


def test_a_link_without_limits_costs_nothing():
    assert cost(build(Collective.ALL_REDUCE, "ring", 8), Link(), 1 << 30) == 0


def test_the_cheapest_follows_the_network():
    far, near = Link(latency_s=0.05, bandwidth_bps=1e9), Link(latency_s=1e-6, bandwidth_bps=1e7)
    assert cheapest(Collective.ALL_REDUCE, 8, far, 4096).algorithm == "one_shot"
    assert cheapest(Collective.ALL_REDUCE, 8, near, 1 << 24).algorithm == "two_shot"
    assert cheapest(Collective.BROADCAST, 8, near, 1 << 24, root=3).algorithm == "chain"
    assert cheapest(Collective.BROADCAST, 8, near, 1 << 24, root=3).root == 3
    assert cheapest(Collective.ALL_GATHER, 8, far, 4096).algorithm == "one_shot"


@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_what_ranks_send_adds_up_to_what_is_transferred(collective, name):
    schedule = build(collective, name, 7)
    bounds = schedule.bounds(1001)
    total = sum(bounds[t.stop] - bounds[t.start] for t in schedule.transfers)
    assert sum(schedule.sent(rank, 1001) for rank in range(7)) == total
    if collective is not Collective.BROADCAST:
        assert all(schedule.sent(rank, 1001) > 0 for rank in range(7))
