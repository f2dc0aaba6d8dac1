"""Residuals in the checkpoints of frameworks: each rank has its own, so each writes its own file."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from headway.ddp import HookState


def save(handle: HookState, folder: Path | str, name: str = "headway") -> None:
    """Write the state of this rank into a checkpoint's folder. Every rank calls it, between steps."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    torch.save(handle.state_dict(), _file_in(folder, name))


def load(handle: HookState, folder: Path | str, device: torch.device, name: str = "headway") -> None:
    """Go on from what `save` has written. Every rank calls it."""
    file = _file_in(folder, name)
    state = torch.load(file, map_location="cpu", weights_only=True) if file.exists() else None
    take_over(handle, state, device)


def take_over(handle: HookState, state: Mapping[str, Any] | None, device: torch.device) -> None:
    """Go on from a state if every rank has one; else all start without residuals, with a warning.

    Args:
        handle: That of this rank.
        state: That of this rank, or None.
        device: Where the process group can send from.
    """
    everybody_has_one = torch.tensor([state is not None], dtype=torch.int32, device=device)
    dist.all_reduce(everybody_has_one, dist.ReduceOp.MIN)
    if state is None or not everybody_has_one:
        warnings.warn("the checkpoint does not have Headway's residuals of all ranks: they start from 0", stacklevel=3)
        return
    handle.load_state_dict(state, strict=False)


def _file_in(folder: Path | str, name: str) -> Path:
    return Path(folder) / f"{name}-{dist.get_rank()}.pt"
