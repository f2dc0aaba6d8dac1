"""What the adapters share: checks of what a framework passes in, and residuals in its checkpoints.

Residuals differ from rank to rank, so each rank writes its own file.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from headway.ddp import Adaptive, Fixed, HookState


def check_config(config: Adaptive | Fixed | Any) -> None:
    """Reject now what `headway.attach` would reject when training begins."""
    if config is not None and not isinstance(config, (Adaptive, Fixed)):
        kind = type(config).__name__
        raise ValueError(f"config is a {kind}, but must be a headway.Adaptive(...) or headway.Fixed(...)")


def save_residuals(handle: HookState, folder: Path | str, name: str = "headway") -> None:
    """Write the state of this rank into a checkpoint's folder. Every rank calls it, between steps."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    torch.save(handle.state_dict(), _file_in(folder, name))


def load_residuals(handle: HookState, folder: Path | str, device: torch.device, name: str = "headway") -> None:
    """Continue from the files of `save_residuals`. Every rank calls it."""
    file = _file_in(folder, name)
    state = torch.load(file, map_location="cpu", weights_only=True) if file.exists() else None
    resume(handle, state, device)


def resume(handle: HookState, state: Mapping[str, Any] | None, device: torch.device) -> None:
    """Continue from a saved state if every rank has one; otherwise all start without residuals, with a warning.

    Args:
        handle: Handle of this rank.
        state: Saved state of this rank, or None.
        device: Device that the process group can send from.
    """
    all_have_one = torch.tensor([state is not None], dtype=torch.int32, device=device)
    dist.all_reduce(all_have_one, dist.ReduceOp.MIN)
    if state is None or not all_have_one:
        warnings.warn("the checkpoint does not have Headway's residuals of all ranks: they start from 0", stacklevel=3)
        return
    handle.load_state_dict(state, strict=False)


def _file_in(folder: Path | str, name: str) -> Path:
    return Path(folder) / f"{name}-{dist.get_rank()}.pt"
