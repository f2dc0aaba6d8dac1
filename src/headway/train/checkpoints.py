"""Checkpoints: a file for each rank, since residuals and gossiping models differ between ranks."""

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
    """Return where the checkpoint of a step is.

    >>> str(folder_of(Path("run"), 120))
    'run/checkpoints/step-00000120'
    """
    return run / FOLDER / f"step-{step:08}"


def save(run: Path, step: int, state: Mapping[str, Any]) -> Path:
    """Write this rank's part; every rank calls it. Only the last two checkpoints are kept."""
    folder = folder_of(run, step)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank-{dist.get_rank()}.pt"
    partial = path.with_suffix(".partial")
    torch.save(dict(state), partial)
    os.replace(partial, path)  # a checkpoint is there whole, or not at all
    _remove(run, steps_of(run, dist.get_rank())[:-_NUM_KEPT])
    return folder


def load(run: Path, step: int) -> dict[str, Any]:
    """Read this rank's part; nothing in it can run code.

    Raises:
        ValueError: It is damaged.
    """
    path = folder_of(run, step) / f"rank-{dist.get_rank()}.pt"
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    except (RuntimeError, OSError, EOFError, KeyError, pickle.UnpicklingError):
        raise ValueError(f"{path} is damaged: remove {path.parent}, and go on from the checkpoint before it") from None
    return state


def steps_of(run: Path, rank: int, *, only_whole: bool = False) -> list[int]:
    """Return the steps of which a rank has a checkpoint, ascending; on demand those alone that are not cut short."""
    found = (run / FOLDER).glob(f"step-*/rank-{rank}.pt")
    steps = {int(match[1]): path for path in found if (match := _STEP.fullmatch(path.parent.name))}
    return sorted(step for step, path in steps.items() if not only_whole or zipfile.is_zipfile(path))


def latest_common_step(run: Path) -> int | None:
    """Return the latest step of which every rank has a whole checkpoint; every rank calls it, and all get the same.

    Ranks may be on machines that do not share files.
    """
    newest = torch.full((_NUM_KEPT + 1,), -1)
    for place, step in enumerate(steps_of(run, dist.get_rank(), only_whole=True)[::-1][: len(newest)]):
        newest[place] = step
    rows = [torch.empty_like(newest) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, newest)
    common = set.intersection(*({int(step) for step in row if step >= 0} for row in rows))
    return max(common, default=None)


def remove_after(run: Path, step: int) -> None:
    """Remove this rank's parts of later checkpoints: a run that goes on from a step must not meet an earlier life's."""
    _remove(run, [each for each in steps_of(run, dist.get_rank()) if each > step])


def _remove(run: Path, steps: Sequence[int]) -> None:
    """Remove this rank's parts of checkpoints, and folders that are empty then."""
    rank = dist.get_rank()
    for step in steps:
        folder = folder_of(run, step)
        (folder / f"rank-{rank}.pt").unlink(missing_ok=True)
        with suppress(OSError):  # other ranks still have theirs in it, or have removed it
            folder.rmdir()
