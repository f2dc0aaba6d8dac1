"""The callback in real trainings, on two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launching import json_of, run_ranks

SCRIPT = Path(__file__).with_name("scripts") / "trainings.py"


@pytest.mark.timeout(120)
def test_trainings(tmp_path):
    for saw in map(json_of, run_ranks(SCRIPT, tmp_path, str(tmp_path))):
        assert saw["steps"] == 8
        assert saw["saved"] > 0.6
        assert saw["heard"] == saw["kept"] == 5  # four times while it trains, and the end; not the evaluation
        assert saw["files"] == ["headway-0.pt", "headway-1.pt"]
        assert saw["buffer"] == 8 * (1 + 2) / 2  # averaged at the end, before 20 steps have passed
        assert saw["resumed is equal"]
        assert saw["resumed steps"] == 8
        assert saw["is another handle"]
        assert saw["steps of both"] == 16
        assert saw["residual is kept"]
        assert saw["velocity is kept"]
        assert saw["momenta"] == [0]  # the hook applies it
        assert saw["settings after"] == [[0.5, 0.01], [0.5, 0.0]]  # weights, and biases
        assert saw["momenta with clipping"] == [0.5]
        assert ["momentum of an optimizer" in text for text in saw["warned of clipping"]] == [True]
        assert saw["steps of a new model"] == 8
        assert saw["loss scale"] == 512.0
        assert saw["warned"] == ["the checkpoint does not have Headway's residuals of all ranks: they start from 0"]
        assert not saw["without is equal"]
        assert saw["alone"] == ["there is one process, so Headway does nothing: start with torchrun"]
        for message, part in zip(saw["refusals"], ["not a Fixed", "config is a str", "this is a Linear"], strict=True):
            assert part in message
