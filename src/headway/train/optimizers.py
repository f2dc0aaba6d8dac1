"""Optimizers and schedules of the learning rate, by name."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.optim import Optimizer

OPTIMIZERS = ("sgd", "adamw")
SCHEDULES = ("constant", "cosine", "step")
_MOMENTUM = 0.9
_STEP_EVERY, _STEP_BY = 1 / 3, 0.1


def make_optimizer(name: str, model: nn.Module, lr: float, weight_decay: float) -> Optimizer:
    """Return an optimizer of a model's parameters: "sgd" (with momentum 0.9) or "adamw"."""
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=_MOMENTUM, weight_decay=weight_decay)


def lr_factor(schedule: str, step: int, num_steps: int, warmup_steps: int = 0) -> float:
    """Return the factor of the learning rate at a step.

    With warm-up w, (step + 1) / w over the first w steps. After it, for p the share of the other steps that is over:
    "constant" 1, "cosine" (1 + cos πp) / 2, "step" a tenth after each third.

    >>> [round(lr_factor("cosine", step, 4), 3) for step in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    >>> [round(lr_factor("step", step, 7, warmup_steps=1), 3) for step in range(7)]
    [1.0, 1.0, 1.0, 0.1, 0.1, 0.01, 0.01]
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    share = (step - warmup_steps) / max(num_steps - warmup_steps, 1)
    if schedule == "cosine":
        return (1 + math.cos(math.pi * min(share, 1.0))) / 2
    if schedule == "step":
        return _STEP_BY ** math.floor(min(share, 1.0) / _STEP_EVERY + 1e-9)
    return 1.0
