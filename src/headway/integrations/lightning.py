"""Headway in PyTorch Lightning.

    strategy = headway.integrations.lightning.HeadwayStrategy()
    trainer = lightning.Trainer(accelerator="cpu", devices=4, strategy=strategy)

Lightning silently ignores its own ``ddp_comm_hook`` without CUDA; the strategy registers its hook on any device.
"""

from __future__ import annotations

import os
from typing import Any

from headway.ddp import Adaptive, Fixed, HookState, attach
from headway.ddp.model import Buffers
from headway.integrations._shared import check_config, optimizer_to_correct, resume
from headway.report import scalars

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import DDPStrategy
    from lightning.pytorch.trainer.states import TrainerFn
except ImportError as error:
    raise ImportError(f"lightning cannot be imported ({error}): pip install 'headway[lightning]'") from error

__all__ = ["HeadwayLogging", "HeadwayStrategy"]


class HeadwayStrategy(DDPStrategy):
    """DDP whose gradients Headway averages.

    Each ``fit`` has its own handle, since Lightning wraps the model again. The momentum of an SGD is corrected, if it
    is the only optimizer and the Trainer does not clip gradients. Checkpoints with the optimizer's state come with the
    residuals in a file for each rank: ``NAME.ckpt.headway-RANK``.

    Args:
        config: As for `headway.attach`.
        buffers: As for `headway.attach`.
        **options: Options of DDPStrategy and of DistributedDataParallel.
    """

    def __init__(self, config: Adaptive | Fixed | None = None, *, buffers: Buffers = "average", **options: Any) -> None:
        check_config(config)
        if foreign := sorted(name for name in options if name.startswith("ddp_comm_")):
            raise ValueError(f"{', '.join(foreign)}: Headway is the communication hook, and DDP takes one only")
        super().__init__(**options)
        self.handle: HookState | None = None
        """Handle of the latest ``fit``: open while it runs, and still readable afterwards."""
        self._config = config
        self._buffers = buffers
        self._resume_from: str | None = None

    def setup(self, trainer: Trainer) -> None:
        try:
            super().setup(trainer)
            if trainer.state.fn == TrainerFn.FITTING:
                self._attach(trainer.gradient_clip_val)
        finally:
            self._resume_from = None

    def _attach(self, clip_limit: float | None) -> None:
        """Attach to the model, once optimizers exist; Lightning restores their states afterwards."""
        assert self.model is not None
        optimizer = optimizer_to_correct(self.optimizers, clip_limit)
        scaler = getattr(self.precision_plugin, "scaler", None)
        self.handle = attach(self.model, self._config, optimizer=optimizer, scaler=scaler, buffers=self._buffers)
        if self._resume_from is not None:
            resume(self.handle, self._read_state(self._resume_from), self.root_device)

    def on_train_end(self) -> None:
        """Let all ranks end with the same buffers."""
        super().on_train_end()
        if self.handle is not None:
            self.handle.average_buffers()

    def on_exception(self, exception: BaseException) -> None:
        """Let the other ranks know that this one has failed."""
        super().on_exception(exception)
        if self.handle is not None:
            self.handle.abandon()

    def teardown(self) -> None:
        if self.handle is not None:
            self.handle.close()
        super().teardown()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        super().save_checkpoint(checkpoint, filepath, storage_options=storage_options)
        if self.handle is not None and "optimizer_states" in checkpoint:
            path = self._state_path(filepath)
            self.checkpoint_io.save_checkpoint(self.handle.state_dict(), path, storage_options=storage_options)

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        self._resume_from = os.path.realpath(checkpoint_path) if os.path.islink(checkpoint_path) else checkpoint_path
        return super().load_checkpoint(checkpoint_path, *args, **options)

    def remove_checkpoint(self, filepath: Any) -> None:
        super().remove_checkpoint(filepath)
        self.checkpoint_io.remove_checkpoint(self._state_path(filepath))

    def _read_state(self, filepath: str) -> dict[str, Any] | None:
        try:
            return self.checkpoint_io.load_checkpoint(self._state_path(filepath))
        except FileNotFoundError:
            return None

    def _state_path(self, filepath: Any) -> str:
        return f"{os.fspath(filepath)}.headway-{self.global_rank}"


class HeadwayLogging(Callback):
    """Logs rank 0's "headway/saved", "headway/ratio" and so on to the trainer's loggers.

    Args:
        every_n_steps: Optimizer steps between two log entries; by default the trainer's ``log_every_n_steps``.
    """

    def __init__(self, every_n_steps: int | None = None) -> None:
        if every_n_steps is not None and (type(every_n_steps) is not int or every_n_steps < 1):
            raise ValueError(f"every_n_steps is {every_n_steps!r}, but must be a number of steps, 1 or more")
        self._every_n_steps = every_n_steps
        self._logged_step = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(trainer.strategy, HeadwayStrategy):
            kind = type(trainer.strategy).__name__
            raise ValueError(f"HeadwayLogging needs Trainer(strategy=HeadwayStrategy(...)), but there is a {kind}")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._logged_step = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        every_n_steps = self._every_n_steps or trainer.log_every_n_steps  # type: ignore[attr-defined]
        if trainer.global_step - self._logged_step >= max(every_n_steps, 1):
            self._log(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step > self._logged_step:
            self._log(trainer)

    def _log(self, trainer: Trainer) -> None:
        self._logged_step = trainer.global_step
        assert isinstance(trainer.strategy, HeadwayStrategy)
        assert trainer.strategy.handle is not None
        values = scalars(trainer.strategy.handle)
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.global_step)
