"""Training on every rank for the tests of the gossip optimizer: a small network with batch norm, an ordinary loop."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from headway import gossip


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, scaler: Any = None, scheduler: Any = None
) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        inputs = torch.randn(8, 6, generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :2] * 2)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        if scheduler is not None:
            scheduler.step()


def network(width: int = 16, seed: int = 0) -> nn.Module:
    torch.manual_seed(10 * seed + dist.get_rank())  # different weights on each rank: wrap makes them equal
    return nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))


def wrapped(model: nn.Module, **options: Any) -> gossip.GossipOptimizer:
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return gossip.wrap(model, inner, **{"timeout_s": 20.0, **options})
