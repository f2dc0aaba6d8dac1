"""What optimizers that train without DDP have in common: an inner optimizer makes the local update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


class WrappedOptimizer(Optimizer):
    """An optimizer around another one.

    Parameter groups and state are those of the inner optimizer, so that schedulers act on them. A GradScaler that
    finds an overflow skips the local update only: other ranks wait for this one's messages all the same.

    Args:
        inner: The optimizer of the script.
    """

    _step_supports_amp_scaling = True
    """Let a GradScaler call `step` even where it has found an overflow."""

    def __init__(self, inner: Optimizer) -> None:
        super().__init__(inner.param_groups, inner.defaults)
        self.inner = inner
        self._frozen = [p for group in inner.param_groups for p in group["params"] if not p.requires_grad]
        self.share_with_inner()

    def share_with_inner(self) -> None:
        """Have the inner optimizer's groups and state, also after it has loaded others."""
        self.param_groups = self.inner.param_groups
        self.state = self.inner.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise, once wrapped: all ranks have agreed on what a message holds."""
        if hasattr(self, "inner"):
            raise ValueError("parameters cannot be added to a wrapped optimizer: add them first, then wrap")
        super().add_param_group(param_group)

    def drop_nonfinite(self) -> None:
        """Set Inf and NaN in the inner optimizer's state, such as velocities, to zero."""
        for state in self.inner.state.values():
            for value in state.values():
                if isinstance(value, Tensor) and value.is_floating_point():
                    value.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)

    def check_frozen(self) -> None:
        """Raise if a parameter that all ranks have left out of their messages may move now."""
        if any(parameter.requires_grad for parameter in self._frozen):
            raise ValueError("a parameter was unfrozen after the optimizer was wrapped: wrap the optimizer again")

    def step_inner(self, closure: Callable[[], float] | None) -> float | None:
        """Make the local update, unless a GradScaler has found an overflow; return what the inner optimizer returns."""
        self.check_frozen()
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and float(found_inf):
            return None
        scale = getattr(self, "grad_scale", None)
        if scale is not None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.div_(scale)
        loss: float | None = self.inner.step() if closure is None else self.inner.step(closure)
        return loss
