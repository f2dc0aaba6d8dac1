"""Momentum correction: the optimizer hands its momentum over to the hook.

SGD applies momentum to averages, where entries that waited in a residual have lost it. The hook applies it to every
rank's own gradient, before entries are selected (`headway.kernels.velocity`). From then on the optimizer has no
momentum and no weight decay of its own: what DDP gives it as gradients are updates.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from headway.kernels import Momentum

_logger = logging.getLogger("headway")
_HANDED_OVER = ("momentum", "weight_decay", "nesterov")
_NOTHING_LEFT = {"momentum": 0, "weight_decay": 0, "nesterov": False}


def why_not(optimizer: Optimizer, parameters: Iterable[Tensor]) -> str | None:
    """Return why an optimizer keeps its momentum, or None if it can be handed over.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> why_not(torch.optim.AdamW([weight]), [weight])
    'AdamW has no momentum of the kind that SGD has'
    """
    if not isinstance(optimizer, SGD):
        return f"{type(optimizer).__name__} has no momentum of the kind that SGD has"
    groups = optimizer.param_groups
    kinds = {(group["momentum"], group["nesterov"]) for group in groups}
    if len(kinds) > 1:
        return "its parameter groups have different momenta"
    if not groups[0]["momentum"]:
        return "it has none"
    if any(group["dampening"] or group["maximize"] for group in groups):
        return "it has dampening, or maximizes"
    own = {id(parameter) for group in groups for parameter in group["params"]}
    if not {id(parameter) for parameter in parameters} <= own:
        return "it does not have all parameters of the model"
    return None


class HandedOver:
    """The momentum and weight decay of an SGD, which the hook applies instead.

    A learning-rate schedule may go on changing them, and a state may be loaded: what appears in the optimizer's groups
    is taken over when the next gradients come. States that the optimizer saves have its own values.

    Args:
        optimizer: An SGD with momentum, of which `why_not` has no complaint.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        first = optimizer.param_groups[0]
        self.momentum = Momentum(float(first["momentum"]), bool(first["nesterov"]))
        self._own: list[dict[str, Any]] = [dict(_NOTHING_LEFT) for _ in optimizer.param_groups]
        self._decay: dict[int, float] = {}
        self.take_over()
        self._hook = optimizer.register_state_dict_post_hook(self._as_if_kept)
        _logger.info(
            "momentum %g%s is applied before compression, not by the optimizer (momentum correction)",
            self.momentum.factor,
            " (Nesterov)" if self.momentum.is_nesterov else "",
        )

    def take_over(self) -> None:
        """Take over what a schedule, or a state that was loaded, has put into the optimizer's groups."""
        for group, own in zip(self._optimizer.param_groups, self._own, strict=True):
            for name in _HANDED_OVER:
                if group[name]:
                    own[name], group[name] = group[name], _NOTHING_LEFT[name]
            self._decay |= {id(parameter): own["weight_decay"] for parameter in group["params"]}
        self.momentum.factor = float(self._own[0]["momentum"])
        self.momentum.is_nesterov = bool(self._own[0]["nesterov"])

    def add_decay(self, gradient: Tensor, parameters: Sequence[Tensor], scale: float, *, skips_zeros: bool) -> None:
        """Add weight decay to the gradient of a bucket, as SGD does before momentum.

        Args:
            gradient: Flat.
            parameters: Those of the bucket, in order.
            scale: What the loss was multiplied by.
            skips_zeros: Whether parameters whose gradient is zero may be unused: SGD leaves those alone.
        """
        parts = torch.split(gradient, [parameter.numel() for parameter in parameters])
        for part, parameter in zip(parts, parameters, strict=True):
            decay = self._decay.get(id(parameter), 0.0)
            if decay and not (skips_zeros and not bool(part.any())):
                part.add_(parameter.detach().reshape(-1).to(part.dtype), alpha=decay * scale)

    def give_back(self) -> None:
        """Put momentum and weight decay back into the optimizer; a second call does nothing."""
        self.take_over()
        for group, own in zip(self._optimizer.param_groups, self._own, strict=True):
            group.update(own)
            own.update(_NOTHING_LEFT)
        self._hook.remove()

    def _as_if_kept(self, _optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Let a state that the optimizer saves have its momentum, for runs without the hook."""
        for saved, own in zip(state["param_groups"], self._own, strict=True):
            saved.update({name: own[name] for name in _HANDED_OVER if not saved[name]})
