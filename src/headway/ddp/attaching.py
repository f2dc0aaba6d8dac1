"""The one line in a training script."""

from __future__ import annotations

from typing import Any

from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from headway.ddp.hook_state import HookState, hook
from headway.tuner import Adaptive, Fixed


def attach(module: Module, config: Fixed | Adaptive | Any = None) -> HookState:
    """Let Headway average the gradients of a DDP model from now on. Every rank calls it.

    Args:
        module: The model, wrapped in DistributedDataParallel, without a communication hook.
        config: `Adaptive`, the default, chooses the plan live; `Fixed` uses exactly the settings you give it.

    Returns:
        The handle: ``plan``, ``history``, ``records``, ``network``, ``statistics()``, ``state_dict()``,
        ``load_state_dict()`` and ``close()``.
    """
    if not isinstance(module, DistributedDataParallel):
        kind = type(module).__name__
        raise ValueError(f"attach takes a DistributedDataParallel model, not {kind}: wrap the model first, then attach")
    if config is not None and not isinstance(config, (Fixed, Adaptive)):
        kind = type(config).__name__
        raise ValueError(f"config is a {kind}, but must be a headway.Adaptive(...) or headway.Fixed(...)")
    if module._comm_hooks:
        raise ValueError("this model has a communication hook, and DDP takes one for life: wrap the model again")
    state = HookState(config, module=module.module, group=module.process_group)
    module.register_comm_hook(state, hook)
    return state
