"""What the tests of the hook run on every rank: small models, few steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import headway
from headway import Link

LINK = Link(latency_s=0.001, bandwidth_bps=1e8)
SMALL_BUCKETS_MB = 0.001


def mlp(width: int = 64) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 5))


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(8, 20, generator=generator)
    return inputs, inputs[:, :5].argmax(dim=1)


def parameters_of(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().float().flatten() for parameter in model.parameters()])


def wrap(model: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model, **{"bucket_cap_mb": SMALL_BUCKETS_MB, **options})


def step_once(ddp: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    inputs, targets = batch(dist.get_rank(), step)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(ddp(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item()


def train(
    config: dict | None, *, num_steps: int = 20, make: Callable[[], nn.Module] = mlp, ddp_options: dict | None = None
) -> dict[str, Any]:
    """Train with a hook, or with plain DDP if there is no config; return parameters and what the handle says."""
    ddp = wrap(make(), **(ddp_options or {}))
    handle = None if config is None else headway.attach(ddp, headway.Fixed(**{"link": LINK, "timeout_s": 20, **config}))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    losses = [step_once(ddp, optimizer, step) for step in range(num_steps)]
    seen: dict[str, Any] = {"parameters": parameters_of(ddp), "losses": losses}
    if handle is not None:
        seen |= {"plan": handle.plan, "history": handle.records, "statistics": handle.statistics()}
        handle.close()
    return seen


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()
