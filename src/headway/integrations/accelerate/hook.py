"""Gradients averaged by Headway's hook, in the model that ``accelerator.prepare`` returns.

Accelerate's own ``comm_hook`` accepts a fixed list of hooks only, so `attach` takes the model itself.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from torch.nn import Module
from torch.optim import Optimizer

from headway.ddp import Adaptive, Fixed, HookState
from headway.ddp import attach as attach_to_ddp
from headway.ddp.model import Buffers, find_ddp


def attach(
    model: Module,
    config: Adaptive | Fixed | None = None,
    *,
    optimizer: Optimizer | None = None,
    buffers: Buffers = "average",
) -> HookState:
    """Let Headway average the gradients of a model from ``accelerator.prepare``. Every process calls it.

    Args:
        model: Model returned by ``prepare``, compiled or not.
        config: As for `headway.attach`.
        optimizer: As for `headway.attach`; the one that ``prepare`` returns, or your own.
        buffers: As for `headway.attach`.

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
    return attach_to_ddp(ddp, config, optimizer=optimizer, scaler=_scaler_of(model), buffers=buffers)


def _scaler_of(model: Module) -> Any:
    """Return the loss scaler of the accelerator that has prepared a model; the model itself does not know it."""
    if "accelerate" not in sys.modules:
        return None
    kind = sys.modules["accelerate"].Accelerator
    accelerators = (each for each in gc.get_objects() if issubclass(type(each), kind))
    return next((each.scaler for each in accelerators if any(known is model for known in each._models)), None)
