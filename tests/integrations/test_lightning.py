"""The strategy and the callback in real fits, on two ranks."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.launching import json_of, run_ranks

SCRIPT = Path(__file__).with_name("scripts") / "fits.py"
SGD = {"momentum": 0.5, "weight_decay": 0.01, "nesterov": True}


@pytest.mark.timeout(120)
def test_fits(tmp_path):
    first, second = map(json_of, run_ranks(SCRIPT, tmp_path, str(tmp_path)))
    assert (first["failure"], second["failure"]) == ("PeerLost", "ZeroDivisionError")
    for saw in (first, second):
        assert saw["steps"] == 20
        assert saw["saved"] > 0.7
        kept = "epoch=3-step=20.ckpt"
        assert saw["kept"] == [kept, f"{kept}.headway-0", f"{kept}.headway-1", "last.ckpt"]
        assert (saw["resumed steps"], saw["steps from link"]) == (20, 25)
        assert saw["buffer"] == 10 * (1 + 2) / 2  # averaged at the end, before 20 steps have passed
        assert saw["resumed is equal"]
        assert not saw["without is equal"]
        assert saw["warned"] == ["the checkpoint does not have Headway's residuals of all ranks: they start from 0"]
        assert saw["has velocity"]
        assert saw["momenta"] == [0]  # the hook applies it
        assert saw["momenta with clipping"] == [SGD["momentum"]]
        for when in ("saved", "after", "after failure"):
            assert saw[f"settings {when}"] == SGD, when
        assert saw["failed in time"]
        assert saw["loss scale"] == 512.0
        for message, part in zip(
            saw["refusals"],
            ["config is a str", "ddp_comm_hook: Headway is", "every_n_steps is 0", "SingleDeviceStrategy"],
            strict=True,
        ):
            assert part in message
    assert not list(tmp_path.glob("weights.ckpt.*"))
    (log,) = tmp_path.glob("log/lightning_logs/version_0/metrics.csv")
    logged = [row["step"] for row in csv.DictReader(log.read_text().splitlines()) if row["headway/saved"]]
    assert logged == ["4", "8", "12", "16", "20"]
