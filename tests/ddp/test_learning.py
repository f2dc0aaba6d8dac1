"""Compressed training learns what plain DDP learns: the real handwritten digits of scikit-learn.

No one file of the package is tested here, but the hook as a whole.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn

import headway
from tests.ddp.training import LINK, wrap

pytestmark = pytest.mark.pool

NUM_STEPS, BATCH = 300, 24


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(data.data, dtype=torch.float32)[order] / 16, torch.tensor(data.target)[order]


def accuracies(configs: list[dict | None]) -> list[float]:
    return [accuracy(config) for config in configs]


def accuracy(config: dict | None) -> float:
    images, labels = digits()
    num_test = 450
    torch.manual_seed(0)
    ddp = wrap(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    handle = None if config is None else headway.attach(ddp, headway.Fixed(link=LINK, timeout_s=20, **config))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(NUM_STEPS):
        picked = torch.randint(num_test, len(labels), (BATCH,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(images[picked]), labels[picked]).backward()
        optimizer.step()
    if handle is not None:
        assert handle.records[-1].wire_bytes < 0.3 * handle.records[-1].dense_bytes
        handle.close()
    with torch.no_grad():
        return float((ddp.module(images[:num_test]).argmax(dim=1) == labels[:num_test]).float().mean())


def test_digits_are_learned_as_well_as_by_plain_ddp(pool):
    exchanges = ("allgather_topk", "star_topk")
    configs = [None] + [{"exchange": name, "ratio": 0.05, "fusion": "step"} for name in exchanges]
    plain, *compressed = pool.run(accuracies, configs, num_ranks=2, timeout_s=110)[0]
    assert plain > 0.93
    for name, reached in zip(exchanges, compressed, strict=True):
        assert reached >= plain - 0.01, name
