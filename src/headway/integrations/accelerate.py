"""Headway in scripts that use Hugging Face Accelerate.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    handle = headway.integrations.accelerate.attach(model)

Accelerate's own ``comm_hook`` is a closed list, so the hook goes on what ``prepare`` returns.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.nn import Module

from headway.ddp import Adaptive, Fixed, HookState
from headway.ddp import attach as attach_to_ddp
from headway.integrations import _residuals
from headway.integrations._models import find_ddp

if TYPE_CHECKING:
    from accelerate import Accelerator

__all__ = ["attach", "register_for_checkpointing"]


def attach(model: Module, config: Adaptive | Fixed | None = None) -> HookState:
    """Let Headway average the gradients of a model from ``accelerator.prepare``. Every process calls it.

    Args:
        model: What ``prepare`` has returned, compiled or not.
        config: As for `headway.attach`.

    Returns:
        The handle, as from `headway.attach`; close it before ``accelerator.end_training()``.
    """
    ddp = find_ddp(model)
    if ddp is None:
        kind = type(model).__name__
        raise ValueError(
            f"attach takes what accelerator.prepare returns with several processes, a DistributedDataParallel model, "
            f"not {kind}: prepare the model first, and start with torchrun --nproc-per-node 2 or more"
        )
    return attach_to_ddp(ddp, config)


def register_for_checkpointing(accelerator: Accelerator, handle: HookState, name: str = "headway") -> None:
    """Let ``accelerator.save_state`` and ``load_state`` take the residuals along, a file for each process.

    ``accelerator.register_for_checkpointing(handle)`` would not do: it keeps those of the main process alone.

    Args:
        accelerator: Whose states.
        handle: From `attach`.
        name: Of the files, ``NAME-RANK.pt``; with several models each needs another.
    """

    def save(models: list[Any], weights: list[Any], folder: Path | str) -> None:
        _residuals.save(handle, folder, name)

    def load(models: list[Any], folder: Path | str) -> None:
        _residuals.load(handle, folder, accelerator.device, name)

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
