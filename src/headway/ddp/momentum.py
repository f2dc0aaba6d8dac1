"""Momentum correction: the optimizer hands its momentum over to the hook.

SGD applies momentum to averages, where entries that waited in a residual have lost it. The hook applies it to every
rank's own gradient, before entries are selected (`headway.kernels.velocity`). From then on the optimizer has no
momentum and no weight decay of its own: what DDP gives it as gradients are updates.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.utils.hooks import RemovableHandle

from headway.exchange.unused import is_zero
from headway.kernels import Momentum

_logger = logging.getLogger("headway")
_HANDED_OVER = ("momentum", "weight_decay", "nesterov")
_MARK = "_headway_has_momentum"
"""Marks an optimizer whose momentum a handle has."""
_NOTHING_LEFT = {"momentum": 0, "weight_decay": 0, "nesterov": False}


def unwrap(optimizer: Any) -> Any:
    """Return the optimizer that a wrapper, such as Accelerate's, has inside; anything else as it is."""
    return getattr(optimizer, "optimizer", optimizer)


def has_momentum(optimizer: Optimizer) -> bool:
    """Return whether any parameter group has a momentum, as those of SGD and RMSprop may."""
    return any(group.get("momentum") for group in optimizer.param_groups)


def why_not(optimizer: Optimizer, parameters: Sequence[Tensor]) -> str | None:
    """Return why an optimizer keeps its momentum, or None if it can be handed over.

    Args:
        optimizer: The optimizer.
        parameters: Those that are averaged, if they are known.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> why_not(torch.optim.AdamW([weight]), [weight])
    'AdamW has no momentum of the kind that SGD has'
    """
    if type(optimizer) is not SGD:
        return f"{type(optimizer).__name__} has no momentum of the kind that SGD has"
    groups = optimizer.param_groups
    if len({(group["momentum"], group["nesterov"]) for group in groups}) > 1:
        return "its parameter groups have different momenta"
    if not groups[0]["momentum"]:
        return "it has none"
    if any(group["dampening"] or group["maximize"] for group in groups):
        return "it has dampening, or maximizes"
    own = [parameter for group in groups for parameter in group["params"] if parameter.requires_grad]
    if any(parameter.dtype == torch.float64 for parameter in own):
        return "it is in double precision"
    if parameters and set(map(id, own)) != set(map(id, parameters)):
        return "its parameters are not those that the model averages"
    return None


def check_free(optimizer: Optimizer | None) -> None:
    """Raise `ValueError` if another handle has the momentum of an optimizer."""
    if getattr(optimizer, _MARK, False):
        raise ValueError("another handle has the momentum of this optimizer: close() it first")


class HandedOver:
    """The momentum and weight decay of an SGD, which the hook applies instead, from `start` on.

    A learning-rate schedule may go on changing them, and a state may be loaded: what appears in the optimizer's groups
    is taken over before the next gradients, or the next step, use it. States that the optimizer saves have its own
    values.

    Args:
        optimizer: An SGD with momentum, of which `why_not` has no complaint.
        expects_skips: Whether a loss scaler may skip steps.
    """

    def __init__(self, optimizer: Optimizer, *, expects_skips: bool = False) -> None:
        self._optimizer = optimizer
        first = optimizer.param_groups[0]
        self.momentum = Momentum(float(first["momentum"]), bool(first["nesterov"]))
        self._own: list[dict[str, Any]] = []
        self._decay: dict[int, float] = {}
        self._has_stepped = True
        self._has_warned = expects_skips
        self._hooks: list[RemovableHandle] = []

    def start(self) -> None:
        """Leave the optimizer without momentum and weight decay, until `give_back`."""
        setattr(self._optimizer, _MARK, True)
        self._hooks = [
            self._optimizer.register_state_dict_post_hook(self._as_if_kept),
            self._optimizer.register_step_pre_hook(lambda *_: self.take_over()),
            self._optimizer.register_step_post_hook(self._note_step),
        ]
        if self._has_buffers():
            _logger.warning("the momentum that the optimizer has from before is dropped: momentum starts at zero")
        self.take_over()
        _logger.info(
            "momentum %g%s is applied before compression, not by the optimizer (momentum correction)",
            self.momentum.factor,
            " (Nesterov)" if self.momentum.is_nesterov else "",
        )

    def take_over(self) -> None:
        """Take over what the optimizer's groups have, at first or because a schedule or a state has put it there."""
        groups = self._optimizer.param_groups
        self._own += [dict(_NOTHING_LEFT) for _ in groups[len(self._own) :]]
        for group, own in zip(groups, self._own, strict=True):
            appeared = [name for name in _HANDED_OVER if group[name]]
            for name in appeared:
                own[name], group[name] = group[name], _NOTHING_LEFT[name]
            if appeared:
                self._decay |= {id(parameter): own["weight_decay"] for parameter in group["params"]}
                self._drop_buffers(group["params"])
        self.momentum.factor = float(self._own[0]["momentum"])
        self.momentum.is_nesterov = bool(self._own[0]["nesterov"])

    def begin_step(self) -> None:
        """Prepare for the gradients of a step; the one before should have been applied."""
        self.take_over()
        if not self._has_stepped and not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "two backward passes without an optimizer step between them: momentum would count twice; "
                "accumulate gradients under no_sync(), or attach without optimizer="
            )
        self._has_stepped = False

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
            if decay and not (skips_zeros and is_zero(part)):
                _in_order_of(part, parameter).add_(parameter.detach().to(part.dtype), alpha=decay * scale)

    def give_back(self) -> None:
        """Put momentum and weight decay back into the optimizer; a second call does nothing."""
        if not self._hooks:
            return
        self.take_over()
        for group, own in zip(self._optimizer.param_groups, self._own, strict=True):
            group.update(own)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        delattr(self._optimizer, _MARK)

    def _note_step(self, *_: object) -> None:
        self._has_stepped = True

    def _has_buffers(self) -> bool:
        return any(state.get("momentum_buffer") is not None for state in self._optimizer.state.values())

    def _drop_buffers(self, parameters: Sequence[Tensor]) -> None:
        """Drop what the optimizer has left of its own momentum: it would be old when the optimizer has it again."""
        for parameter in parameters:
            self._optimizer.state.get(parameter, {}).pop("momentum_buffer", None)

    def _as_if_kept(self, _optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Let a state that the optimizer saves have its momentum, for runs without the hook."""
        for saved, own in zip(state["param_groups"], self._own, strict=False):
            saved.update({name: own[name] for name in _HANDED_OVER if not saved[name]})


def _in_order_of(part: Tensor, parameter: Tensor) -> Tensor:
    """Return a parameter's part of a bucket in the parameter's shape: DDP keeps the order of its memory."""
    if torch.ops.aten.is_non_overlapping_and_dense(parameter):
        return part.as_strided(parameter.size(), parameter.stride())
    return part.view(parameter.size())
