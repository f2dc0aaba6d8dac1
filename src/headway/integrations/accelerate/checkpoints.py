"""The state of each process in the checkpoints of Accelerate."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.nn import Module

from headway.ddp import HookState
from headway.integrations._common_model import CommonModel
from headway.integrations._shared import AnyHandle, load_residuals, save_residuals
from headway.local import LocalOptimizer

if TYPE_CHECKING:
    from accelerate import Accelerator


def register_for_checkpointing(accelerator: Accelerator, handle: AnyHandle, name: str = "headway") -> None:
    """Include the residuals in ``accelerator.save_state`` and ``load_state``, a file for each process.

    ``accelerator.register_for_checkpointing(handle)`` is not enough: it saves only those of the main process. With
    local steps the file has all that is a process's own, and the model that Accelerate saves is the common one.

    Args:
        accelerator: Accelerator that saves and loads the states.
        handle: Handle returned by `attach`, or that of the optimizer returned by `wrap`.
        name: Prefix of the files, ``NAME-RANK.pt``; must differ between models.
    """
    if isinstance(handle, LocalOptimizer):
        _register_local(accelerator, handle, name)
    else:
        _register_hook(accelerator, handle, name)


def _register_hook(accelerator: Accelerator, handle: HookState, name: str) -> None:
    def save(models: list[Any], weights: list[Any], folder: Path | str) -> None:
        save_residuals(handle, folder, name)

    def load(models: list[Any], folder: Path | str) -> None:
        load_residuals(handle, folder, accelerator.device, name)

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)


def _register_local(accelerator: Accelerator, handle: LocalOptimizer, name: str) -> None:
    """Save the common model, and load what is a process's own last.

    Accelerate calls hooks before it loads models and then optimizers, both as the main process saved them.
    """
    folders: list[Path | str] = []

    def save(models: list[Any], weights: list[Any], folder: Path | str) -> None:
        for place, model in enumerate(models):
            if _moves(handle, model):
                read = partial(accelerator.get_state_dict, model, unwrap=False)
                weights[place] = CommonModel(handle).copy_of(read)
        save_residuals(handle, folder, name)

    def load(models: list[Any], folder: Path | str) -> None:
        folders.append(folder)

    def after_optimizer(_: Any) -> None:
        if folders:
            load_residuals(handle, folders.pop(), accelerator.device, name)

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
    handle.inner.register_load_state_dict_post_hook(after_optimizer)


def _moves(handle: LocalOptimizer, model: Module) -> bool:
    """Return whether a model is the one that is trained with local steps."""
    moved = {id(parameter) for group in handle.inner.param_groups for parameter in group["params"]}
    return any(id(parameter) in moved for parameter in model.parameters())
