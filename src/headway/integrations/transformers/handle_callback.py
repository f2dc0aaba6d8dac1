"""What the callbacks share: logs and checkpoints of the handle of a ``train()``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from headway.integrations._shared import AnyHandle, save_residuals
from headway.report import scalars

if TYPE_CHECKING:
    from transformers import Trainer


class HandleCallback(TrainerCallback):
    """Logs what a handle tells, and saves its state in the Trainer's checkpoints, a file for each rank.

    Args:
        trainer: Trainer that the callback is added to.
    """

    def __init__(self, trainer: Trainer) -> None:
        if not hasattr(trainer, "callback_handler"):
            raise ValueError(f"{type(self).__name__} takes the Trainer it is added to, not a {type(trainer).__name__}")
        self._trainer = trainer
        self._has_warned = False

    @property
    def handle(self) -> AnyHandle | None:
        """Handle of the latest ``train()``: open while it runs, and still readable afterwards."""
        raise NotImplementedError

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add "headway/saved" and so on to the logs of training."""
        if self.handle is None or logs is None or any(name.startswith("eval_") for name in logs):
            return
        values = scalars(self.handle)
        logs.update(values)
        state.log_history[-1].update(values)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write the state of this rank into the checkpoint."""
        if self.handle is not None and not args.save_only_model and not state.is_hyper_param_search:
            save_residuals(self.handle, checkpoint_of(args, state))

    def _order_callbacks(self, *last: TrainerCallback) -> None:
        """Run before callbacks that write logs, which see only what earlier callbacks have added; and others last.

        The list is replaced, not changed, because the Trainer may be iterating over it.
        """
        known = self._trainer.callback_handler.callbacks
        others = [each for each in known if each is not self and each not in last]
        self._trainer.callback_handler.callbacks = [self, *others, *last]

    def _warn_of_one_process(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn("there is one process, so Headway does nothing: start with torchrun", stacklevel=3)


def checkpoint_of(args: TrainingArguments, state: TrainerState) -> Path:
    """Return the folder of the Trainer's checkpoint of this step."""
    assert args.output_dir is not None
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
