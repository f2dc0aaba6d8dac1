"""The callback of local steps: several steps between exchanges, and no DDP."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal

from torch.nn import Module
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from headway.collectives import AUTO
from headway.ddp.model import find_ddp
from headway.ddp.momentum import unwrap
from headway.integrations._common_model import CommonModel
from headway.integrations._shared import check_local_options, load_residuals
from headway.integrations.transformers.handle_callback import HandleCallback, checkpoint_of
from headway.local import LocalOptimizer, wrap

if TYPE_CHECKING:
    from transformers import Trainer


class HeadwayLocalCallback(HandleCallback):
    """Lets a Trainer take several steps between exchanges (`headway.local.wrap`), without DDP.

    Make it before the first ``train()``. The Trainer has no option against DDP: while the callback is in its list, its
    accelerator prepares the model as for evaluation. Evaluations and checkpoints within ``train()`` have the common
    model, and at the end all ranks have the same one. With one process the callback does nothing but warn.

    Args:
        trainer: Trainer that the callback is added to.
        steps: As for `headway.local.wrap`.
        **options: ``config``, ``overlap``, ``outer`` and ``residual_decay``, as for `headway.local.wrap`.
    """

    def __init__(self, trainer: Trainer, steps: int | Literal["auto"] = AUTO, **options: Any) -> None:
        super().__init__(trainer)
        self._options = {"steps": steps, **options}
        check_local_options(self._options)
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise ValueError("local steps train a whole model in every process: not with FSDP or DeepSpeed")
        self._handle: LocalOptimizer | None = None
        self._common: CommonModel | None = None
        self._prepare_as_usual = trainer.accelerator.prepare_model
        trainer.accelerator.prepare_model = self._prepare_model
        self._last = _BeforeEvaluations(self)

    @property
    def handle(self) -> LocalOptimizer | None:
        """Handle of the latest ``train()``: open while it runs, and still readable afterwards."""
        return self._handle

    def _prepare_model(self, model: Module, device_placement: bool | None = None, evaluation_mode: bool = False) -> Any:
        """Prepare a model without DDP, which evaluation does not need either."""
        is_in_use = self in self._trainer.callback_handler.callbacks
        return self._prepare_as_usual(model, device_placement, evaluation_mode or is_in_use)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Make all models equal, or continue from a checkpoint."""
        self._order_callbacks(self._last)
        if args.world_size == 1:
            self._warn_of_one_process()
            return
        if find_ddp(self._trainer.model_wrapped) is not None:
            raise ValueError("the model is in DistributedDataParallel already: make the callback before train()")
        self._warn_of_counting(args)
        self._end()
        self._handle = wrap(self._model, unwrap(self._trainer.optimizer), **self._options)
        self._common = CommonModel(self._handle)
        if state.global_step > 0:
            load_residuals(self._handle, checkpoint_of(args, state), args.device)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Go on from this rank's own model."""
        if self._common is not None:
            self._common.take_back()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Exchange if it is time; the Trainer's optimizer has taken the step."""
        if self._handle is not None:
            self._handle.after_step()

    def before_evaluation(self) -> None:
        """Put the common model in place."""
        if self._common is not None:
            self._common.put()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write what is this rank's own into the checkpoint."""
        if self._common is not None:
            with self._common.aside():
                super().on_save(args, state, control, **kwargs)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Let all ranks end with the same model, unless the Trainer has just loaded the best one."""
        if self._handle is None or self._common is None:
            return
        has_best = args.load_best_model_at_end and state.best_model_checkpoint is not None
        if not has_best and not state.is_hyper_param_search:  # rank 0 alone may have ended a trial
            self._common.take_back()
            self._handle.average_()
        self._end()

    def _end(self) -> None:
        """Close the handle of this ``train()``, or of one that has failed."""
        if self._handle is not None and self._common is not None:
            self._common.let_go(self._model)
            self._common = None
            self._handle.close()

    @property
    def _model(self) -> Module:
        assert self._trainer.model is not None
        return self._trainer.model

    def _warn_of_counting(self, args: TrainingArguments) -> None:
        counts_labels = self._trainer.model_accepts_loss_kwargs or self._trainer.compute_loss_func is not None
        if counts_labels and getattr(args, "average_tokens_across_devices", False):
            warnings.warn(
                "in every step the Trainer asks all processes for their number of labels, which local steps are to "
                "avoid: set average_tokens_across_devices=False",
                stacklevel=2,
            )


class _BeforeEvaluations(TrainerCallback):
    """Last in the list, where it is known whether the Trainer will evaluate or save.

    Args:
        owner: Puts the common model in place.
    """

    def __init__(self, owner: HeadwayLocalCallback) -> None:
        self._owner = owner

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if control.should_evaluate or control.should_save:
            self._owner.before_evaluation()

    on_epoch_end = on_step_end
