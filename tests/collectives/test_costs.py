"""The cost stated in each docstring, against what the schedule costs."""

from __future__ import annotations

import math
import re

import pytest

from headway.collectives import (
    ALGORITHMS,
    Collective,
    CriticalPath,
    build,
    build_for,
    critical_path,
    neighbour_exchange,
    shared_payloads,
)

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
    assert critical_path(schedule) == CriticalPath(num_rounds=0, num_payloads=0.0)


def test_a_neighbour_exchange_costs_its_degree_whatever_the_number_of_ranks():
    for num_ranks in (3, 8, 64):
        ring = neighbour_exchange([[(rank - 1) % num_ranks, (rank + 1) % num_ranks] for rank in range(num_ranks)])
        path = critical_path(ring)
        assert (path.num_rounds, path.num_payloads) == (1, 2)


@pytest.mark.parametrize("num_ranks", [2, 4, 8, 16])
def test_the_textbook_rows_come_out(num_ranks):
    """The modern and textbook rows of the literature, which are stated for powers of two."""
    alpha, beta, num_bytes, log = 0.01, 8e-8, 1_000_000, math.log2(num_ranks)
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
        path = critical_path(build(collective, name, num_ranks))
        assert path.num_rounds * alpha + path.num_payloads * num_bytes * beta == pytest.approx(seconds), name


def test_concurrent_transfers_share_the_nic():
    """A root of 8 that sends to 3 children at once has finished the first when it has finished all."""
    assert shared_payloads(build(Collective.BROADCAST, "tree", 8)) == pytest.approx(3 + 2 + 1)
    assert shared_payloads(build(Collective.ALL_REDUCE, "tree", 8)) == pytest.approx(9)
    assert shared_payloads(build_for(Collective.BROADCAST, "chain", 8, 1 << 22)) == pytest.approx(1 + 6 / 32)


@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_what_ranks_send_adds_up_to_what_is_transferred(collective, name):
    schedule = build(collective, name, 7)
    bounds = schedule.bounds(1001)
    total = sum(bounds[t.stop] - bounds[t.start] for t in schedule.transfers)
    assert sum(schedule.sent(rank, 1001) for rank in range(7)) == total
    if collective is not Collective.BROADCAST:
        assert all(schedule.sent(rank, 1001) > 0 for rank in range(7))
