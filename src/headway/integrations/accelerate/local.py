"""Several steps between exchanges, with a model that Accelerate prepares without DDP."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from torch.nn import Module
from torch.optim import Optimizer

from headway.collectives import AUTO
from headway.ddp.model import find_ddp
from headway.ddp.momentum import unwrap
from headway.integrations._shared import check_local_options
from headway.local import LocalOptimizer
from headway.local import wrap as wrap_locally

if TYPE_CHECKING:
    from accelerate import Accelerator

_SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM")


class SteppedLocally:
    """The optimizer of a loop: Accelerate takes the step, and Headway exchanges if it is time; made by `wrap`.

    While gradients are accumulated it does nothing, as an optimizer from ``accelerator.prepare``.

    Args:
        accelerator: Knows whether gradients are being accumulated.
        prepared: The optimizer that ``accelerator.prepare`` returns.
        handle: Exchanges.
    """

    def __init__(self, accelerator: Accelerator, prepared: Optimizer, handle: LocalOptimizer) -> None:
        self.handle = handle
        """Tells of the exchanges, and has ``average_()``, ``averaged()`` and ``close()``."""
        self._accelerator = accelerator
        self._prepared = prepared

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of the optimizer that was wrapped."""
        return self._prepared.param_groups

    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Take a step, then exchange if it is time."""
        self._prepared.step(closure)
        if self._accelerator.sync_gradients:
            self.handle.after_step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients, unless they are being accumulated."""
        self._prepared.zero_grad(set_to_none)


def wrap(
    accelerator: Accelerator, model: Module, optimizer: Optimizer, steps: int | Literal["auto"] = AUTO, **options: Any
) -> tuple[Module, SteppedLocally]:
    """Prepare a model and its optimizer for local steps. Every process calls it, with a model of the same shape.

    It takes the place of ``accelerator.prepare`` for these two, which would wrap the model in DDP; prepare loaders and
    schedulers as always.

    Args:
        accelerator: Prepares the model as for evaluation, that is without DDP, and the optimizer as always.
        model: The bare model.
        optimizer: Its optimizer.
        steps: As for `headway.local.wrap`.
        **options: ``config``, ``overlap``, ``outer`` and ``residual_decay``, as for `headway.local.wrap`.

    Returns:
        The model, and the optimizer to step with. When training is over call its ``handle.average_()``, then
        ``handle.close()`` before ``accelerator.end_training()``.
    """
    check_local_options({"steps": steps, **options})
    if find_ddp(model) is not None:
        raise ValueError("local steps take the place of DistributedDataParallel: give wrap the bare model")
    if accelerator.distributed_type in _SHARDED:
        kind = accelerator.distributed_type.value
        raise ValueError(f"local steps train a whole model in every process: they do not work with {kind}")
    if accelerator.num_processes < 2:
        raise ValueError("there is one process: start with torchrun --nproc-per-node 2 or more")
    prepared_model = accelerator.prepare_model(model, evaluation_mode=True)
    prepared = accelerator.prepare_optimizer(optimizer)
    handle = wrap_locally(model, unwrap(prepared), steps, **options)
    return prepared_model, SteppedLocally(accelerator, prepared, handle)
