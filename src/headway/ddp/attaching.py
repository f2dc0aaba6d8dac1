"""The one line in a training script."""

from __future__ import annotations

from typing import Any, get_args

from torch.nn import Module
from torch.optim import Optimizer

from headway.ddp.hook_state import HookState, LossScaler, hook
from headway.ddp.model import Buffers, find_ddp
from headway.ddp.momentum import unwrap
from headway.tuner import Adaptive, Fixed


def attach(
    module: Module,
    config: Fixed | Adaptive | Any = None,
    *,
    optimizer: Optimizer | None = None,
    scaler: LossScaler | None = None,
    buffers: Buffers = "average",
) -> HookState:
    """Let Headway average the gradients of a DDP model from now on. Every rank calls it.

    Args:
        module: The model, wrapped in DistributedDataParallel, compiled or not, without a communication hook.
        config: `Adaptive`, the default, chooses the plan live; `Fixed` uses exactly the settings you give it.
        optimizer: The optimizer of the script. An SGD with momentum hands momentum and weight decay over to the hook,
            which applies them before compression (momentum correction); ``close()`` puts them back. Others keep theirs.
        scaler: The ``torch.amp.GradScaler`` of the script, if it has one: residuals follow the scale of its loss.
        buffers: "average" replaces DDP's broadcast of buffers before every forward pass by an average every 20 steps,
            which travels with the gradients; "ddp" leaves the broadcast as it is.

    Returns:
        The handle: ``plan``, ``history``, ``records``, ``network``, ``statistics()``, ``state_dict()``,
        ``load_state_dict()``, ``average_buffers()`` and ``close()``. In a ``with`` block it is closed at the end.
    """
    ddp = find_ddp(module)
    if ddp is None:
        kind = type(module).__name__
        raise ValueError(f"attach takes a DistributedDataParallel model, not {kind}: wrap the model first, then attach")
    if config is not None and not isinstance(config, (Fixed, Adaptive)):
        kind = type(config).__name__
        raise ValueError(f"config is a {kind}, but must be a headway.Adaptive(...) or headway.Fixed(...)")
    if buffers not in get_args(Buffers):
        raise ValueError(f"buffers is {buffers!r}, but must be one of {', '.join(map(repr, get_args(Buffers)))}")
    if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
        raise ValueError(f"scaler is a {type(scaler).__name__}, but must be a torch.amp.GradScaler")
    optimizer = unwrap(optimizer)
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise ValueError(f"optimizer is a {type(optimizer).__name__}, but must be a torch.optim.Optimizer")
    if ddp._comm_hooks:
        raise ValueError("this model has a communication hook, and DDP takes one for life: wrap the model again")
    if getattr(ddp, "_use_python_reducer", False):
        raise ValueError(
            "this model was wrapped with torch._dynamo.config.optimize_ddp = 'python_reducer', which calls no "
            "communication hook: set it to 'ddp_optimizer' and wrap the model again"
        )
    state = HookState(config, module=ddp, group=ddp.process_group, scaler=scaler, optimizer=optimizer, buffers=buffers)
    ddp.register_comm_hook(state, hook)
    state.watch_backward(ddp)
    return state
