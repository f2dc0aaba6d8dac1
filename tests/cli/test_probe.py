"""``headway probe`` on two local ranks and in a lab."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway import cli
from headway.cli import app
from headway.lab import Lab, LinkSpec, Scenario, possible, run_on_loopback
from headway.lab.scenario import PairRule
from tests import forked

COMMAND_LINE = Path(cli.__file__).parent.parent / "__main__.py"


def test_without_ranks_it_says_how_to_launch_it(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    found = CliRunner().invoke(app, ["probe"])
    assert found.exit_code == 2
    assert "torchrun --nproc-per-node 2 -m headway probe" in found.stderr


def test_a_picture_that_cannot_be_drawn_is_rejected_before_measuring(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    found = CliRunner().invoke(app, ["probe", "--plot", "pairs.txt"])
    assert found.exit_code == 2
    assert "--plot is pairs.txt" in found.stderr


def test_rank_0_prints_both_matrices():
    lines = []
    command = forked.command(COMMAND_LINE, "probe")
    found = run_on_loopback(2, command, output=lambda rank, line: lines.append((rank, line)), timeout_s=90)
    assert found.exit_code == 0, found.tails
    assert [rank for rank, line in lines if line == "one-way latency, from row to column"] == [0]
    assert "bps" in "".join(line for _, line in lines)


@pytest.mark.lab
@pytest.mark.skipif(possible.missing() is not None, reason=str(possible.missing()))
def test_the_matrix_is_that_of_the_emulated_links(tmp_path):
    """Hardly faster than they are; on a machine that is busy with other things, slower."""
    lines = []
    narrow = PairRule(sources=(0,), targets=(2,), link=LinkSpec(latency_s=0.005, bandwidth_bps=5e6))
    scenario = Scenario(link=LinkSpec(latency_s=0.005, bandwidth_bps=25e6), pairs=(narrow,))
    with Lab(3, scenario) as lab:
        command = forked.command(COMMAND_LINE, "probe", "--json", "--plot", str(tmp_path / "pairs.png"))
        result = lab.run(command, output=lambda _rank, line: lines.append(line), timeout_s=90)
    assert result.exit_code == 0, result.tails
    found = json.loads(next(line for line in lines if line.startswith("{")))
    for rank in range(3):
        for other in range(3):
            if rank != other:
                assert 0.95 < found["latency_s"][rank][other] / 0.005 < 4
                bandwidth_bps = 5e6 if (rank, other) == (0, 2) else 25e6
                assert 0.4 < found["bandwidth_bps"][rank][other] / bandwidth_bps < 1.6
    assert (tmp_path / "pairs.png").stat().st_size > 5_000
