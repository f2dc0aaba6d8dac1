"""However a script ends, its process does so cleanly; and what only some ranks call does not go unnoticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from headway import PeerLost, gossip
from tests.gossip.problem import Quadratic

SCRIPT = Path(__file__).with_name("scripts") / "ending.py"


@pytest.mark.parametrize("how", ["destroy", "just end"])
def test_every_way_to_end_is_clean(tmp_path, how):
    commands = [[sys.executable, str(SCRIPT), str(tmp_path / "store"), str(rank), how] for rank in range(2)]
    ranks = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands
    ]
    try:
        for process in ranks:
            said, errors = process.communicate(timeout=60)
            assert (process.returncode, said) == (0, "done\n"), errors
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


@pytest.mark.pool
def test_a_rank_that_averages_alone_is_told_whom_it_missed(pool):
    seen = pool.run(average_alone, num_ranks=3)
    assert seen[0].startswith("no answer from ranks 1, 2 within 1.5 s")
    assert seen[1:] == ["", ""]


def average_alone() -> str:
    model = Quadratic(dist.get_rank())
    optimizer = gossip.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01), timeout_s=0.5)
    said = ""
    try:
        if dist.get_rank() == 0:
            optimizer.average_()
    except PeerLost as lost:
        said = str(lost)
    dist.barrier()
    optimizer.close()
    return said
