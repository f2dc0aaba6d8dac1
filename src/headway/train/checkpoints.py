"""Checkpoints: one file per rank, since residuals, and models under gossip, differ between ranks."""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

FOLDER = "checkpoints"
_NUM_KEPT = 2
_STEP = re.compile(r"step-(\d+)")


def folder_of(run: Path, step: int) -> Path:
    """Return the folder of the checkpoint of a step.

    >>> str(folder_of(Path("run"), 120))
    'run/checkpoints/step-00000120'
    """
    return run / FOLDER / f"step-{step:08}"


def save(run: Path, step: int, state: Mapping[str, Any]) -> Path:
    """Write this rank's file; every rank calls it. Only the last two checkpoints are kept."""
    folder = folder_of(run, step)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank-{dist.get_rank()}.pt"
    partial = path.with_suffix(".partial")
    torch.save(dict(state), partial)
    os.replace(partial, path)  # a file is complete, or absent
    _remove(run, steps_of(run, dist.get_rank())[:-_NUM_KEPT])
    return folder


def load(run: Path, step: int) -> dict[str, Any]:
    """Read this rank's file; nothing in it can run code.

    Raises:
        ValueError: It is damaged.
    """
    path = folder_of(run, step) / f"rank-{dist.get_rank()}.pt"
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    except (RuntimeError, OSError, EOFError, KeyError, pickle.UnpicklingError):
        raise ValueError(f"{path} is damaged: remove {path.parent} to resume from an earlier checkpoint") from None
    return state


def steps_of(run: Path, rank: int, *, only_complete: bool = False) -> list[int]:
    """Return the steps of which a rank has a checkpoint, ascending; on request without those that are truncated."""
    found = (run / FOLDER).glob(f"step-*/rank-{rank}.pt")
    steps = {int(match[1]): path for path in found if (match := _STEP.fullmatch(path.parent.name))}
    return sorted(step for step, path in steps.items() if not only_complete or zipfile.is_zipfile(path))


def latest_common_step(run: Path) -> int | None:
    """Return the latest step of which every rank has a complete checkpoint; every rank calls it, and gets the same.

    Ranks may be on machines that do not share files.
    """
    newest = torch.full((_NUM_KEPT + 1,), -1)
    for place, step in enumerate(steps_of(run, dist.get_rank(), only_complete=True)[::-1][: len(newest)]):
        newest[place] = step
    rows = [torch.empty_like(newest) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, newest)
    common = set.intersection(*({int(step) for step in row if step >= 0} for row in rows))
    return max(common, default=None)


def remove_after(run: Path, step: int) -> None:
    """Remove this rank's files of later checkpoints, which a run that resumes from a step will write again."""
    _remove(run, [each for each in steps_of(run, dist.get_rank()) if each > step])


def _remove(run: Path, steps: Sequence[int]) -> None:
    """Remove this rank's files of checkpoints, and folders that are then empty."""
    rank = dist.get_rank()
    for step in steps:
        folder = folder_of(run, step)
        (folder / f"rank-{rank}.pt").unlink(missing_ok=True)
        with suppress(OSError):  # it holds files of other ranks, or they have removed it
            folder.rmdir()
