"""Checkpoints: which one all ranks can load, and what is removed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headway.train import checkpoints
from tests.pool import RankFailed

pytestmark = pytest.mark.pool


def remove_after(folder: str, step: int) -> None:
    checkpoints.remove_after(Path(folder), step)


def latest_of(folder: str) -> int | None:
    return checkpoints.latest_common_step(Path(folder))


def load(folder: str, step: int) -> None:
    checkpoints.load(Path(folder), step)


def test_a_checkpoint_that_is_truncated_or_missing_on_a_rank_is_passed_over(pool, tmp_path):
    for step, ranks in ((3, (0, 1)), (6, (0, 1)), (9, (0, 1)), (12, (0,))):
        folder = checkpoints.folder_of(tmp_path, step)
        folder.mkdir(parents=True)
        for rank in ranks:
            torch.save({"step": step, "weights": torch.ones(1000)}, folder / f"rank-{rank}.pt")
    cut = checkpoints.folder_of(tmp_path, 9) / "rank-1.pt"
    cut.write_bytes(cut.read_bytes()[:2000])
    assert pool.run(latest_of, str(tmp_path)) == [6, 6]
    with pytest.raises(RankFailed, match=r"step-00000009/rank-1.pt is damaged: remove .*step-00000009 to resume"):
        pool.run(load, str(tmp_path), 9)
    pool.run(remove_after, str(tmp_path), 6)
    assert [checkpoints.steps_of(tmp_path, rank) for rank in range(2)] == [[3, 6], [3, 6]]
    assert pool.run(latest_of, str(tmp_path / "nowhere")) == [None, None]
