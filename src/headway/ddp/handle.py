"""The one line in a training script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from headway.ddp.config import Fixed
from headway.ddp.hook_state import HookState, hook
from headway.ddp.statistics import Statistics
from headway.exchange import ExchangeRecord, Plan


class Handle:
    """What `attach` returns: a look at what is going on, and checkpoints."""

    def __init__(self, state: HookState) -> None:
        self._state = state

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self._state.plan

    @property
    def history(self) -> tuple[ExchangeRecord, ...]:
        """The latest records, oldest first; memory for them is bounded."""
        return self._state.history

    def statistics(self) -> Statistics:
        """Return bytes sent against dense ones, ratio, gain and times, by exchange."""
        return self._state.statistics()

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to be bitwise equal to one that was not interrupted, of this rank."""
        return self._state.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go on from a state of the same rank; ``strict=False`` drops residuals that do not fit, with a warning."""
        self._state.load_state_dict(state, strict=strict)

    def close(self) -> None:
        """End the engine thread and close process groups, when training is over."""
        self._state.close()


def attach(module: Module, config: Fixed | None = None) -> Handle:
    """Let Headway average the gradients of a DDP model from now on. Every rank calls it.

    Args:
        module: The model, wrapped in DistributedDataParallel, without a communication hook.
        config: What to do; dense by default.
    """
    if not isinstance(module, DistributedDataParallel):
        kind = type(module).__name__
        raise ValueError(f"attach takes a DistributedDataParallel model, not {kind}: wrap the model first, then attach")
    if module._comm_hooks:
        raise ValueError("this model has a communication hook, and DDP takes one for life: wrap the model anew")
    state = HookState(config, module=module.module, group=module.process_group)
    module.register_comm_hook(state, hook)
    return Handle(state)
