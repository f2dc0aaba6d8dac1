"""The strategy that averages gradients: DDP with Headway's hook.

Lightning silently ignores its own ``ddp_comm_hook`` without CUDA; the strategy registers its hook on any device.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn

from headway.ddp import Adaptive, Fixed, HookState, attach
from headway.ddp.model import Buffers
from headway.integrations._shared import check_config, optimizer_to_correct
from headway.integrations.lightning.rank_states import RankStateStrategy


class HeadwayStrategy(RankStateStrategy):
    """DDP whose gradients Headway averages.

    Each ``fit`` has its own handle, since Lightning wraps the model again. The momentum of an SGD is corrected, if it
    is the only optimizer and the Trainer does not clip gradients. Checkpoints with the optimizer's state come with the
    residuals in a file for each rank: ``NAME.ckpt.headway-RANK``.

    Args:
        config: As for `headway.attach`.
        buffers: As for `headway.attach`.
        **options: Options of DDPStrategy and of DistributedDataParallel.
    """

    handle: HookState | None

    def __init__(self, config: Adaptive | Fixed | None = None, *, buffers: Buffers = "average", **options: Any) -> None:
        check_config(config)
        if foreign := sorted(name for name in options if name.startswith("ddp_comm_")):
            raise ValueError(f"{', '.join(foreign)}: Headway is the communication hook, and DDP takes one only")
        super().__init__(**options)
        self._config = config
        self._buffers = buffers

    def setup(self, trainer: Trainer) -> None:
        super().setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            self._attach(trainer.gradient_clip_val)

    def _attach(self, clip_limit: float | None) -> None:
        """Attach to the model, once optimizers exist; Lightning restores their states afterwards."""
        assert self.model is not None
        optimizer = optimizer_to_correct(self.optimizers, clip_limit)
        scaler = getattr(self.precision_plugin, "scaler", None)
        self.handle = attach(self.model, self._config, optimizer=optimizer, scaler=scaler, buffers=self._buffers)

    def on_train_end(self) -> None:
        """Let all ranks end with the same buffers."""
        super().on_train_end()
        if self.handle is not None:
            self.handle.average_buffers()
