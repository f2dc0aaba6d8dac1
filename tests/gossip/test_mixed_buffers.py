"""The mixing of buffers."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from headway import gossip
from tests.gossip.loop import network, train, wrapped

pytestmark = pytest.mark.pool


def test_buffers_that_are_not_finite_stay_as_they_are(pool):
    assert all(pool.run(mix_a_mask, num_ranks=2))


def mix_a_mask() -> bool:
    model = network()
    mask = torch.triu(torch.full((4, 4), float("-inf")), diagonal=1)
    model.register_buffer("mask", mask.clone())
    model.register_buffer("precise", torch.ones(2, dtype=torch.float64))
    model.register_buffer("columns", torch.ones(3, 2).t())
    model.register_buffer("number", torch.tensor(True))
    optimizer = wrapped(model, buffer_interval=2)
    train(model, optimizer, range(7))
    optimizer.average_()
    same = torch.equal(model.mask, mask)
    optimizer.close()
    return same


def test_buffers_are_mixed_at_their_interval(pool):
    mixed, alone = (pool.run(spread_of_buffers, interval, num_ranks=4)[0] for interval in (5, 0))
    assert mixed[0] == pytest.approx(alone[0], rel=1e-4)  # the mean over ranks is what it would be
    assert mixed[1] < 0.5 * alone[1]


def spread_of_buffers(interval: int) -> tuple[float, float]:
    """Models that do not learn, data that differ between ranks: only mixing brings their statistics together."""
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2))
    inner = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer = gossip.wrap(model, inner, buffer_interval=interval, timeout_s=20)
    for step in range(21):
        inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(step)) + dist.get_rank()
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
    optimizer.state_dict()
    means = [torch.empty(6) for _ in range(dist.get_world_size())]
    dist.all_gather(means, model[0].running_mean)
    optimizer.close()
    together = torch.stack(means)
    return float(together.mean()), float(together.std(dim=0).mean())
