"""Local steps that go on when ranks are killed, and take them back when they are started again."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.launching import Ranks, json_of

SCRIPT = Path(__file__).with_name("scripts") / "losing.py"
KILLED = 128 + 9
NESTEROV = {"exchange": "dense"}


def train(folder: Path, num_ranks: int = 4, **options) -> list[tuple[int, str]]:
    given = {"steps": 40, "wrap": {"steps": 2, "overlap": False}, "die": {}, **options}
    with Ranks(SCRIPT, folder, json.dumps(given), num_ranks=num_ranks) as ranks:
        for rank in range(num_ranks):
            ranks.start(rank)
        return ranks.finish()


def survivors(ended: list[tuple[int, str]]) -> list[dict]:
    return [json_of(text) for code, text in ended if code == 0]


@pytest.mark.parametrize(
    ("die", "options"),
    [
        ({"2": 11}, {}),
        ({"1": 12, "3": 12}, {"wrap": {"steps": 3, "overlap": 2}}),
        ({"1": 7, "2": 20, "3": 33}, {"wrap": {"steps": 1, "overlap": 1}}),
        ({"3": 11}, {"config": NESTEROV, "wrap": {"steps": 2, "overlap": False, "nesterov": True}}),
    ],
    ids=["one", "two at once, average on its way", "one after the other, until one is left", "outer momentum"],
)
def test_the_others_go_on_with_the_same_model(tmp_path, die, options):
    ended = train(tmp_path, die=die, **options)
    assert [code for code, _ in ended] == [KILLED if str(rank) in die else 0 for rank in range(4)]
    left = survivors(ended)
    for found in left:
        assert found["num_ranks"] == len(left) == 4 - len(die)
        assert found["num_steps"] == 40
        assert found["model"] == left[0]["model"]
        assert found["last"] < 0.5 * found["first"]
    assert any("without" in line for line in left[0]["said"])


def test_a_rank_that_is_started_again_gets_the_common_model_and_takes_part(tmp_path):
    mark = tmp_path / "mark"
    options = {"wrap": {"steps": 2, "overlap": 1}, "die": {"2": 60}, "mark": str(mark)}
    with Ranks(SCRIPT, tmp_path, json.dumps(options), num_ranks=3) as ranks:
        for rank in range(3):
            ranks.start(rank)
        begun = time.monotonic()
        while not mark.exists() and time.monotonic() < begun + 60:
            time.sleep(0.05)
        ranks.start(2)
        ended = ranks.finish()
    assert [code for code, _ in ended] == [0, 0, KILLED, 0]
    *others, back = survivors(ended)
    assert back["joined_at"] > 60
    assert back["first"] < 0.5 * others[0]["first"]
    for found in (*others, back):
        assert (found["num_ranks"], found["num_steps"]) == (3, back["num_steps"])
        assert found["model"] == back["model"]
    assert others[0]["said"] == ["going on with 2 ranks, without rank 2", "rank 2 let in: going on with 3 ranks"]


def test_without_the_keeper_of_the_store_nobody_goes_on(tmp_path):
    ended = train(tmp_path, num_ranks=3, die={"0": 11})
    assert [code for code, _ in ended] == [KILLED, 1, 1]
    for _, text in ended[1:]:
        assert "the store that ranks meet at is gone, with the process that kept it" in text
