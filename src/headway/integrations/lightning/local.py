"""The strategy of local steps: several steps between exchanges, and no DDP."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, Literal

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch.nn import Module
from torch.optim import Optimizer

from headway.collectives import AUTO
from headway.ddp import Adaptive, Fixed
from headway.ddp.momentum import unwrap
from headway.integrations._common_model import CommonModel
from headway.integrations._shared import AnyHandle, check_local_options
from headway.integrations.lightning.rank_states import RankStateStrategy
from headway.local import LocalOptimizer, Outer, wrap

_OF_DDP = {"ddp_comm_state", "ddp_comm_hook", "ddp_comm_wrapper", "model_averaging_period"}


class HeadwayLocalStrategy(RankStateStrategy):
    """Ranks take several steps by themselves, and then exchange how far they have moved (`headway.local.wrap`).

    The model is not wrapped in DDP; data is distributed as with DDP. Validation within ``fit`` evaluates the common
    model, and checkpoints hold it. What is a rank's own is in a file beside a checkpoint with the optimizer's state,
    ``NAME.ckpt.headway-RANK``. At the end of ``fit`` all ranks have the same model.

    Args:
        steps: As for `headway.local.wrap`.
        config: As for `headway.local.wrap`.
        overlap: As for `headway.local.wrap`.
        outer: As for `headway.local.wrap`.
        residual_decay: As for `headway.local.wrap`.
        **options: Options of DDPStrategy; those of DistributedDataParallel are rejected.
    """

    handle: LocalOptimizer | None

    def __init__(
        self,
        steps: int | Literal["auto"] = AUTO,
        *,
        config: Adaptive | Fixed | None = None,
        overlap: bool | int = True,
        outer: Outer | None = None,
        residual_decay: float = 1.0,
        **options: Any,
    ) -> None:
        self._options: dict[str, Any] = {
            "steps": steps,
            "config": config,
            "overlap": overlap,
            "outer": outer,
            "residual_decay": residual_decay,
        }
        check_local_options(self._options)
        if foreign := sorted(set(options) - (set(signature(DDPStrategy).parameters) - _OF_DDP)):
            raise ValueError(f"{', '.join(foreign)}: with local steps there is no DistributedDataParallel to take it")
        super().__init__(**options)
        self._common: CommonModel | None = None
        """Only while ``fit`` runs."""

    def configure_ddp(self) -> None:
        """Leave the model as it is: every rank trains its own."""

    def setup(self, trainer: Trainer) -> None:
        super().setup(trainer)
        if trainer.state.fn != TrainerFn.FITTING:
            return
        if len(self.optimizers) != 1:
            raise ValueError(
                f"local steps take one optimizer, but configure_optimizers returns {len(self.optimizers)}: "
                f"give their parameters to one, as groups, or use HeadwayStrategy"
            )
        assert self.lightning_module is not None
        self.handle = wrap(self.lightning_module, unwrap(self.optimizers[0]), **self._options)
        self._common = CommonModel(self.handle)

    def optimizer_step(
        self, optimizer: Optimizer, closure: Callable[[], Any], model: Module | None = None, **options: Any
    ) -> Any:
        """Let Lightning take the step, then exchange if it is time."""
        output = super().optimizer_step(optimizer, closure, model, **options)
        assert self.handle is not None
        self.handle.after_step()
        return output

    def on_validation_start(self) -> None:
        super().on_validation_start()
        if self._common is not None:
            self._common.put()

    def on_validation_end(self) -> None:
        if self._common is not None:
            self._common.take_back()
        super().on_validation_end()

    def on_train_end(self) -> None:
        """Let all ranks end with the same model."""
        super().on_train_end()
        assert self.handle is not None
        self.handle.average_()

    def teardown(self) -> None:
        if self._common is not None:
            self._common.take_back()
            self._common = None
        super().teardown()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the common model."""
        if self._common is None:
            return super().lightning_module_state_dict()
        return self._common.copy_of(super().lightning_module_state_dict)

    def _own_state(self, handle: AnyHandle) -> dict[str, Any]:
        if self._common is None:
            return super()._own_state(handle)
        with self._common.aside():
            return super()._own_state(handle)
