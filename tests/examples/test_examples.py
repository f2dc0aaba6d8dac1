"""Every example runs on two ranks, learns, and sends less than plain DDP; one is started by torchrun itself."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.launching import free_port, run, run_ranks

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.timeout(120)


def check(printed: str, *, least_saved: float) -> None:
    """Check what rank 0, and nobody else, says in the end."""
    (accuracy,) = re.findall(r"accuracy ([\d.]+)%", printed)
    (saved,) = re.findall(r"([-\d.]+)% saved", printed)
    assert float(accuracy) > 80
    assert least_saved < float(saved) < 100


def test_two_nodes_with_plain_ddp(tmp_path, forked_torchrun):
    path = f"{Path(forked_torchrun).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["sh", str(EXAMPLES / "two_nodes.sh")]
    check(run(command, tmp_path, PATH=path, MASTER_PORT=str(free_port())), least_saved=90)


def test_gossip_ring(tmp_path):
    check("".join(run_ranks(EXAMPLES / "gossip_ring.py", tmp_path)), least_saved=70)


def test_local_steps(tmp_path):
    printed = "".join(run_ranks(EXAMPLES / "local_steps.py", tmp_path))
    check(printed, least_saved=70)
    assert "27 exchanges in 220 steps" in printed


def test_lightning(tmp_path):
    check("".join(run_ranks(EXAMPLES / "lightning_ddp.py", tmp_path)), least_saved=90)
    (log,) = tmp_path.glob("examples_output/lightning/lightning_logs/version_0/metrics.csv")
    assert "headway/saved" in log.read_text()
    states = tmp_path.glob("examples_output/lightning/lightning_logs/version_0/checkpoints/*.ckpt.headway-*")
    assert len(list(states)) == 2


def test_accelerate(tmp_path):
    check("".join(run_ranks(EXAMPLES / "accelerate_ddp.py", tmp_path)), least_saved=90)
    assert len(list(tmp_path.glob("examples_output/accelerate/headway-*.pt"))) == 2


def test_hf_trainer(tmp_path):
    printed = "".join(run_ranks(EXAMPLES / "hf_trainer.py", tmp_path))
    check(printed, least_saved=90)
    assert "'headway/saved'" in printed


def test_the_list_names_every_example():
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")}
    assert files == set(re.findall(r"\]\((\w+\.(?:py|sh))\)", (EXAMPLES / "README.md").read_text()))
