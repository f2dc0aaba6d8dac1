"""The callback that logs what the handle of a strategy tells."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from headway.integrations.lightning.rank_states import RankStateStrategy
from headway.report import scalars


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
        if not isinstance(trainer.strategy, RankStateStrategy):
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
        assert isinstance(trainer.strategy, RankStateStrategy)
        assert trainer.strategy.handle is not None
        values = scalars(trainer.strategy.handle)
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.global_step)
