"""What the adapters share: what they take from a framework, and the state of each rank in its checkpoints.

Residuals differ from rank to rank, and with local steps so do models: each rank writes its own file.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from headway.ddp import Adaptive, Fixed, HookState
from headway.ddp.momentum import has_momentum, unwrap
from headway.local import LocalOptimizer
from headway.local.settings import LocalSettings

AnyHandle = HookState | LocalOptimizer
_logger = logging.getLogger("headway")


def check_config(config: Adaptive | Fixed | Any) -> None:
    """Reject now what `headway.attach` would reject when training begins."""
    if config is not None and not isinstance(config, (Adaptive, Fixed)):
        kind = type(config).__name__
        raise ValueError(f"config is a {kind}, but must be a headway.Adaptive(...) or headway.Fixed(...)")


def check_local_options(options: Mapping[str, Any]) -> None:
    """Reject now what `headway.local.wrap` would reject when training begins; None is a default."""
    LocalSettings(**{name: value for name, value in options.items() if value is not None})


def optimizer_to_correct(optimizers: Sequence[Optimizer], clip_limit: float | None) -> Optimizer | None:
    """Return the optimizer whose momentum `headway.attach` may correct; None, with a line in the log, if there is none.

    Where gradients are clipped, optimizers keep their momentum: updates would be clipped instead, which are several
    times as large.

    Args:
        optimizers: Optimizers of the framework, perhaps wrapped.
        clip_limit: Limit to which the framework clips gradients; None or 0 if it does not clip them.
    """
    inner: list[Optimizer] = [unwrap(optimizer) for optimizer in optimizers]
    applies_momentum = any(map(has_momentum, inner))
    if len(inner) != 1:
        reason = f"there are {len(inner)}, and Headway can correct the momentum of only one"
    elif applies_momentum and clip_limit is not None and clip_limit > 0:
        reason = f"gradients are clipped to {clip_limit:g}; without clipping Headway would correct the momentum"
    else:
        return inner[0]
    level = logging.WARNING if applies_momentum else logging.INFO
    _logger.log(level, "optimizers apply their own momentum, if they have any: %s", reason)
    return None


def save_residuals(handle: AnyHandle, folder: Path | str, name: str = "headway") -> None:
    """Write the state of this rank into a checkpoint's folder. Every rank calls it, between steps."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    torch.save(handle.state_dict(), _file_in(folder, name))


def load_residuals(handle: AnyHandle, folder: Path | str, device: torch.device, name: str = "headway") -> None:
    """Continue from the files of `save_residuals`. Every rank calls it."""
    file = _file_in(folder, name)
    state = torch.load(file, map_location="cpu", weights_only=True) if file.exists() else None
    resume(handle, state, device)


def resume(handle: AnyHandle, state: Mapping[str, Any] | None, device: torch.device) -> None:
    """Continue from a saved state if every rank has one; otherwise all start without residuals, with a warning.

    With local steps all then start from the model as it is, which is the common one of the checkpoint.

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
