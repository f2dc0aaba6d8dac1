"""Training on every rank for the tests of local steps, and what it should come to, computed without headway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headway import Fixed, Link, local

LR, MOMENTUM = 0.05, 0.9
DENSE = Fixed(exchange="dense", link=Link(latency_s=1e-4, bandwidth_bps=1e9), timeout_s=20.0)


def network(*, norm: bool = False) -> nn.Module:
    torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)  # different on each rank: wrap makes them equal
    middle = [nn.BatchNorm1d(12)] if norm else []
    return nn.Sequential(nn.Linear(6, 12), *middle, nn.Tanh(), nn.Linear(12, 2))


def wrapped(model: nn.Module, steps: int | str = 3, **options: Any) -> local.LocalOptimizer:
    inner = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    return local.wrap(model, inner, steps, **{"config": DENSE, "overlap": False, **options})  # type: ignore[arg-type]


def loss_of(model: nn.Module, step: int, rank: int) -> Tensor:
    inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * step + rank))
    return nn.functional.mse_loss(model(inputs), inputs[:, :2] * 2)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: range,
    after: Callable[[int], None] = lambda step: None,
) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step, dist.get_rank()).backward()
        optimizer.step()
        after(step)


def flat(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def expected(model: nn.Module, num_ranks: int, num_steps: int, local_steps: int, delay: int) -> tuple[Tensor, Tensor]:
    """Return the common model, and this rank's own, after steps with dense differences; all ranks in one process."""
    start = flat(model)
    models, velocities = [start.clone() for _ in range(num_ranks)], [torch.zeros_like(start) for _ in range(num_ranks)]
    common, bases, waiting, since = start.clone(), [start.clone() for _ in range(num_ranks)], None, 0
    for step in range(num_steps):
        for rank, velocity in enumerate(velocities):
            nn.utils.vector_to_parameters(models[rank], model.parameters())
            model.zero_grad()
            loss_of(model, step, rank).backward()
            gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
            velocity.mul_(MOMENTUM).add_(gradient)
            models[rank] = models[rank] - LR * velocity
        since += 1
        if waiting is not None and since >= delay:
            common = common - waiting
            models = _moved_to(common, models, bases)
            bases, waiting = [common.clone() for _ in models], None
        if waiting is None and since >= local_steps:
            waiting, since = torch.stack([b - m for b, m in zip(bases, models, strict=True)]).mean(dim=0), 0
            bases = [each.clone() for each in models]
            if delay == 0:
                common = common - waiting
                models, bases, waiting = [common.clone() for _ in models], [common.clone() for _ in models], None
    return common, models[dist.get_rank()]


def _moved_to(common: Tensor, models: Sequence[Tensor], bases: Sequence[Tensor]) -> list[Tensor]:
    return [common + (model - base) for model, base in zip(models, bases, strict=True)]
