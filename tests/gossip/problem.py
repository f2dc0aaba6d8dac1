"""Small problems with different data on each rank, and a loop that minimises them with gossip."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from headway import gossip
from headway.compress import Compressor


class Quadratic(nn.Module):
    """f_i(x) = |A_i x - b_i|² / 2, with a different A and b on each rank; x in two parts."""

    def __init__(self, rank: int, numel: int = 40) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(rank)
        self.a = torch.eye(numel) + 0.2 * torch.randn(numel, numel, generator=generator) / numel**0.5
        self.b = torch.randn(numel, generator=generator)
        self.first = nn.Parameter(torch.linspace(-1, 1, numel // 4) + rank)
        self.second = nn.Parameter(torch.linspace(1, -1, numel - numel // 4) - rank)

    def forward(self) -> Tensor:
        return (self.a @ torch.cat([self.first, self.second]) - self.b).square().sum() / 2


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().float().flatten() for parameter in model.parameters()])


def quadratics(num_ranks: int, lr: float) -> tuple[np.ndarray, Callable]:
    """Return the first model, and the local update of SGD for all ranks at once."""
    problems = [Quadratic(rank) for rank in range(num_ranks)]
    a = np.stack([problem.a.double().numpy() for problem in problems])
    b = np.stack([problem.b.double().numpy() for problem in problems])

    def move(x: np.ndarray) -> np.ndarray:
        residual = np.einsum("rij,rj->ri", a, x) - b
        return -lr * np.einsum("rij,ri->rj", a, residual)

    return flat(problems[0]).double().numpy(), move


@dataclass
class Recording:
    """A compressor that records the error of each message: C(z) - z."""

    inner: Compressor
    is_unbiased: bool = True
    has_bounded_noise: bool = True
    noise: list[Tensor] = field(default_factory=list, repr=False)

    def num_bytes(self, numel: int) -> int:
        return self.inner.num_bytes(numel)

    def encode(self, x: Tensor, key: int, *, out: Tensor) -> int:
        num_unfit = self.inner.encode(x, key, out=out)
        sent = torch.empty_like(x)
        self.inner.decode(out, key, out=sent)
        self.noise.append(sent.double() - x.double())
        return num_unfit

    def decode(self, message: Tensor, key: int, *, out: Tensor) -> None:
        self.inner.decode(message, key, out=out)


def descend(
    options: dict[str, Any], num_steps: int, lr: float = 0.05, make: Callable[..., Any] = torch.optim.SGD
) -> dict[str, Any]:
    """Minimise the rank's quadratic with gossip; return the path, the noise and what the optimizer reports."""
    model = Quadratic(dist.get_rank())
    optimizer = gossip.wrap(model, make(model.parameters(), lr=lr), **{"timeout_s": 20.0, **options})
    path = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
        path.append(flat(model))
    compressor = options.get("compressor")
    seen = {
        "path": torch.stack(path),
        "noise": torch.stack(compressor.noise[-num_steps:]) if isinstance(compressor, Recording) else None,
        "distance": optimizer.consensus_distance(),
        "statistics": optimizer.statistics(),
        "events": optimizer.events,
    }
    optimizer.close()
    return seen
