"""The callback that averages gradients: Headway's hook in the DDP model of the Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from transformers import TrainerControl, TrainerState, TrainingArguments

from headway.ddp import Adaptive, Fixed, HookState, hook
from headway.ddp.hook_state import LossScaler
from headway.ddp.model import Buffers, find_ddp
from headway.integrations._shared import check_config, load_residuals, optimizer_to_correct
from headway.integrations.transformers.handle_callback import HandleCallback, checkpoint_of

if TYPE_CHECKING:
    from transformers import Trainer


class HeadwayCallback(HandleCallback):
    """Lets Headway average the gradients of a Trainer's model, from the beginning of ``train()`` to its end.

    A second ``train()`` keeps the residuals of the first if the Trainer continues with the same model; one that resumes
    reads those of the checkpoint. The momentum of an SGD is corrected if ``max_grad_norm`` is 0: by default the Trainer
    clips gradients. With one process the callback does nothing but warn.

    Args:
        trainer: Trainer that the callback is added to.
        config: As for `headway.attach`.
        buffers: As for `headway.attach`.
    """

    def __init__(
        self, trainer: Trainer, config: Adaptive | Fixed | None = None, *, buffers: Buffers = "average"
    ) -> None:
        super().__init__(trainer)
        check_config(config)
        self._config = config
        self._buffers = buffers
        self._slot: _HookSlot | None = None

    @property
    def handle(self) -> HookState | None:
        """Handle of the latest ``train()``: open while it runs, and still readable afterwards."""
        return None if self._slot is None else self._slot.handle

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Attach to the DDP model that the Trainer has made."""
        self._order_callbacks()
        ddp = find_ddp(self._trainer.model_wrapped)
        if ddp is None:
            self._reject_or_warn(args.world_size)
            return
        before = self.handle
        if before is not None:
            before.close()
        is_same_model = self._slot is not None and self._slot.ddp is ddp
        if self._slot is None or not is_same_model:
            self._slot = _HookSlot(ddp)
        assert self._trainer.optimizer is not None
        handle = self._slot.new_handle(
            self._config,
            optimizer=optimizer_to_correct([self._trainer.optimizer], args.max_grad_norm),
            scaler=self._trainer.accelerator.scaler,
            buffers=self._buffers,
        )
        if state.global_step > 0:
            load_residuals(handle, checkpoint_of(args, state), args.device)
        elif before is not None and is_same_model:
            handle.load_state_dict(before.state_dict(), strict=False)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.handle is None:
            return
        if not state.is_hyper_param_search:  # rank 0 alone may have ended a trial
            self.handle.average_buffers()
        self.handle.close()

    def _reject_or_warn(self, num_processes: int) -> None:
        kind = type(self._trainer.model_wrapped).__name__
        if num_processes > 1:
            raise ValueError(f"Headway averages the gradients of DistributedDataParallel models, but this is a {kind}")
        self._warn_of_one_process()


class _HookSlot:
    """The one hook that a DDP model accepts in its lifetime; the handle behind it may change.

    Args:
        ddp: The model, without a communication hook.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        if ddp._comm_hooks:
            raise ValueError(
                "this model already has a communication hook, and DDP accepts only one: remove the other one"
            )
        self.ddp = ddp
        self.handle: HookState | None = None

    def new_handle(
        self,
        config: Adaptive | Fixed | None,
        *,
        optimizer: Optimizer | None,
        scaler: LossScaler | None,
        buffers: Buffers,
    ) -> HookState:
        """Create a handle and use it from now on."""
        handle = HookState(
            config,
            module=self.ddp,
            group=self.ddp.process_group,
            optimizer=optimizer,
            scaler=scaler,
            buffers=buffers,
        )
        if self.handle is None:
            self.ddp.register_comm_hook(self, _hook_of_slot)
        handle.watch_backward(self.ddp)
        self.handle = handle
        return handle


def _hook_of_slot(slot: _HookSlot, bucket: Any) -> Future[Tensor]:
    assert slot.handle is not None
    return hook(slot.handle, bucket)


# DDP compares annotations with the types themselves, not with their names.
_hook_of_slot.__annotations__ |= {"bucket": vars(dist)["GradBucket"], "return": Future[Tensor]}
