"""What breaks in the engine surfaces from backward(), with its cause, on every rank that is alive."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.forked import ForkedScripts

SCRIPT = Path(__file__).with_name("scripts") / "failing.py"
NUM_RANKS = 3


@pytest.fixture
def run_ranks(tmp_path):
    with ForkedScripts(tmp_path) as scripts:

        def run(exchange: str, fusion: str, fate: str, ranks: list[int]) -> dict[int, dict]:
            for rank in range(NUM_RANKS):
                scripts.start(SCRIPT, str(tmp_path / "store"), str(rank), str(NUM_RANKS), exchange, fusion, fate)
            return {rank: json.loads(text) for rank, text in scripts.outputs(ranks, timeout_s=60).items()}

        yield run


@pytest.mark.parametrize(
    ("exchange", "fusion"), [("star_topk", "bucket"), ("allgather_topk", "step"), ("dense", "bucket")]
)
def test_a_rank_that_dies_is_named_by_backward_on_all_others(run_ranks, exchange, fusion):
    for saw in run_ranks(exchange, fusion, "dies", [0, 2]).values():
        assert (saw["error"], saw["lost"], saw["step"]) == ("PeerLost", [1], 3)
        assert saw["seconds"] < 10


def test_an_error_in_one_engine_surfaces_there_and_the_others_lose_that_rank(run_ranks):
    saw = run_ranks("allgather_topk", "bucket", "fails", [0, 1, 2])
    assert (saw[1]["error"], saw[1]["message"], saw[1]["step"]) == ("ZeroDivisionError", "made to fail", 3)
    for rank in (0, 2):
        assert (saw[rank]["error"], saw[rank]["lost"], saw[rank]["step"]) == ("PeerLost", [1], 3)
        assert saw[rank]["seconds"] < 10
