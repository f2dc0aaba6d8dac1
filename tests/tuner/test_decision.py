"""Decisions in words and as data."""

from __future__ import annotations

import json

import pytest

from headway.tuner import DecisionLog
from tests.tuner.virtual_run import GOOD, NARROW, VirtualRun


def test_decisions_are_explained_in_words_and_in_the_log(tmp_path):
    path = tmp_path / "run" / "decisions.jsonl"
    run = VirtualRun(4, lambda step: GOOD if step < 30 else NARROW, log=DecisionLog(path)).play(60)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["words"] for line in lines] == [decision.words for decision in run.ranks[0].decisions]
    fall = next(line for line in lines if line["cause"] == "bandwidth")
    assert fall["words"].startswith("step 33: bandwidth fell from 1e+03 to 10 Mbps: ")
    assert " -> " in fall["words"]
    assert fall["link"] == {"latency_s": 0.001, "bandwidth_bps": 1e7}
    assert len(fall["gain_curve"]) == 41
    chosen = {key: fall["plan"][key] for key in ("exchange", "ratio", "algorithm", "values", "fusion")}
    assert any(chosen.items() <= option.items() for option in fall["front"])
    assert all(option["compress_s"] >= 0 and option["sync_s"] >= 0 for option in fall["front"])
    assert all(option["label"] for option in fall["front"])


def test_training_goes_on_when_the_file_can_no_longer_be_written(tmp_path):
    path = tmp_path / "decisions.jsonl"
    run = VirtualRun(2, log=DecisionLog(path))
    path.unlink()
    path.mkdir()
    with pytest.warns(UserWarning, match="decisions are no longer written"):
        run.play(5)
    assert run.ranks[0].decisions
