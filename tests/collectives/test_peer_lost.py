"""A rank that dies, stops or comes late: every other rank names it, soon, and nobody hangs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.forked import ForkedScripts

SCRIPT = Path(__file__).with_name("scripts") / "lost.py"
NUM_RANKS = 4
TIMEOUT_S = 2.0


@pytest.fixture
def run_ranks(tmp_path):
    with ForkedScripts(tmp_path) as scripts:

        def run(collective: str, algorithm: str, fate: str, waits_for: list[int]) -> dict[int, dict]:
            for rank in range(NUM_RANKS):
                args = [str(rank), str(NUM_RANKS), collective, algorithm, fate]
                scripts.start(SCRIPT, str(tmp_path / "store"), *args)
            return {rank: json.loads(text) for rank, text in scripts.outputs(waits_for, timeout_s=60).items()}

        yield run


OTHERS = [0, 2, 3]


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        ("all_reduce", "ring"),
        ("all_reduce", "native"),
        ("all_gather", "bruck"),
        ("broadcast and sum", "tree"),
        ("council", "none"),
    ],
)
def test_all_others_name_a_rank_that_dies(run_ranks, collective, algorithm):
    for saw in run_ranks(collective, algorithm, "dies", OTHERS).values():
        assert saw["lost"] == saw["again"] == [1]
        assert saw["message"].startswith("lost rank 1 (in ")


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        ("all_reduce", "one_shot"),
        ("all_reduce", "native"),
        ("broadcast and sum", "one_shot"),
        ("council", "none"),
    ],
)
def test_all_others_name_a_rank_that_stops(run_ranks, collective, algorithm):
    for saw in run_ranks(collective, algorithm, "stops", OTHERS).values():
        assert saw["lost"] == saw["again"] == [1]
        assert saw["message"].startswith(f"no answer from rank 1 within {TIMEOUT_S:g} s")
        assert saw["seconds"] >= TIMEOUT_S


def test_a_rank_that_comes_too_late_is_told_so(run_ranks):
    saw = run_ranks("all_reduce", "two_shot", "late", [0, 1, 2, 3])
    assert [saw[rank]["lost"] for rank in OTHERS] == [[1]] * 3
    assert saw[1]["lost"] == []
    assert saw[1]["message"].startswith("the other ranks have given up waiting for this one")


@pytest.mark.parametrize("algorithm", ["ring", "native"])
def test_a_rank_that_is_only_busy_is_not_named(run_ranks, algorithm):
    for saw in run_ranks("all_reduce", algorithm, "dies while one is busy", OTHERS).values():
        assert saw["lost"] == [1]


def test_notices_of_a_call_that_went_well_are_forgotten(run_ranks):
    for saw in run_ranks("all_reduce", "ring", "dies after a scare", OTHERS).values():
        assert saw["lost"] == [1]
