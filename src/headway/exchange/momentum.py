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
from headway.exchange.narrowing import fit
from headway.kernels import Velocity


def apply_common(average: Tensor, velocity: Velocity) -> bool:
    """Replace an average by the update of SGD with momentum; return False if it has Inf or NaN, and leave it.

    What the velocity was is saved: another bucket of the same step may yet turn out not to be finite.

    **Cost**: four passes over the velocity; the optimizer saves as many but one.

    >>> from headway.kernels import Momentum
    >>> average, velocity = torch.ones(2), Velocity.zeros(2, Momentum(0.5))
    >>> apply_common(average, velocity)
    True
    >>> apply_common(average.fill_(1.0), velocity)
    True
    >>> average
    tensor([1.5000, 1.5000])
    """
    if not math.isfinite(float(average.sum(dtype=torch.float32))) and not bool(average.isfinite().all()):
        return False
    momentum, update = velocity.momentum, average.float()
    velocity.before.copy_(velocity.values)
    velocity.values.mul_(momentum.factor).add_(update)
    ahead = update.add(velocity.values, alpha=momentum.factor) if momentum.is_nesterov else velocity.values
    average.copy_(fit(ahead, average.dtype)[0])
    return True


def make_common(velocity: Velocity, channel: ExecutorChannel) -> None:
    """Replace the velocities of all ranks by their average; all ranks get the same bits.

    **Cost**: one dense all-reduce, which no record tells of.
    """
    velocity.values.copy_(channel.all_reduce(velocity.values / channel.num_ranks, AUTO))
    channel.read_meter()  # records are about gradients
