"""Momentum where a step is sent whole: what every rank applies is what SGD with momentum would have applied.

As long as nothing waits in residuals, all ranks have the same velocity. Then only gradients are averaged, and each rank
applies the momentum to the average:

    u = m u + average;   update = u                     (Nesterov: update = average + m u)

Under compression every rank has a velocity of its own, which is added to its residual before entries are selected
(see `headway.kernels.velocity`). When a dense step has sent all residuals, the velocities are averaged once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headway.collectives import AUTO
from headway.exchange.channel import ExecutorChannel
from headway.kernels import Velocity


def apply_common(average: Tensor, velocity: Velocity) -> None:
    """Replace an average by the update of SGD with momentum; one with Inf or NaN stays, and leaves no trace.

    **Cost**: three passes over the velocity; the optimizer saves as many.

    >>> from headway.kernels import Momentum
    >>> average, velocity = torch.ones(2), Velocity.zeros(2, Momentum(0.5))
    >>> apply_common(average, velocity)
    >>> apply_common(average.fill_(1.0), velocity)
    >>> average
    tensor([1.5000, 1.5000])
    """
    if not math.isfinite(float(average.sum(dtype=torch.float32))) and not bool(average.isfinite().all()):
        return
    momentum, update = velocity.momentum, average.float()
    velocity.values.mul_(momentum.factor).add_(update)
    if momentum.is_nesterov:
        average.copy_(update.add(velocity.values, alpha=momentum.factor))
    else:
        average.copy_(velocity.values)


def make_common(velocity: Velocity, channel: ExecutorChannel) -> None:
    """Replace the velocities of all ranks by their average; all ranks get the same bits."""
    velocity.values.copy_(channel.all_reduce(velocity.values / channel.num_ranks, AUTO))
    channel.read_meter()  # records are about gradients
