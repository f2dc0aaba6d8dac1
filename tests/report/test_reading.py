"""Readings of handles: totals, plan and exchange."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import headway
from headway.report import Reading, read, scalars
from tests.ddp.training import fixed, mlp, step_once, wrap
from tests.gossip.loop import network, wrapped


class Handle:
    def __str__(self) -> str:
        return "my plan"

    def statistics(self):
        return SimpleNamespace(step=3, wire_bytes=25, dense_bytes=100)


def test_any_handle_that_counts_its_traffic_can_be_read():
    reading = read(Handle())
    assert (reading.step, reading.saved, reading.exchange, reading.plan) == (3, 0.75, "my plan", "my plan")
    assert scalars(Handle())["headway/saved"] == 0.75
    assert "headway/latency_ms" not in scalars(Handle())


def read_all() -> tuple[Reading, Reading, Reading, dict[str, float], dict[str, float]]:
    ddp = wrap(mlp())
    handle = headway.attach(ddp, headway.Fixed(exchange="allgather_topk", ratio=0.25, algorithm="ring", fusion="step"))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in range(4):
        step_once(ddp, optimizer, step)
    gossip = wrapped(network())
    model = mlp()
    config = fixed(exchange="allgather_topk", ratio=0.25, algorithm="ring", fusion="step")
    local = headway.local.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05), 2, config=config, overlap=False)
    for step in range(5):
        step_once(model, local, step)
    found = read(handle), read(gossip), read(local), scalars(handle), scalars(local)
    for each in (handle, gossip, local):
        each.close()
    return found


@pytest.mark.pool
def test_handles_name_their_exchange_and_plan(pool):
    for hook, gossip, local, plotted, plotted_local in pool.run(read_all, num_ranks=2):
        assert (hook.exchange, hook.plan) == ("allgather_topk", "all-gather top-k ring 25% (one exchange a step)")
        assert 0 < hook.wire_bytes < hook.dense_bytes
        assert plotted["headway/ratio"] == pytest.approx(0.25, abs=0.01)
        assert plotted["headway/switches"] == 0
        assert "headway/local_steps" not in plotted
        assert gossip.exchange == gossip.plan
        assert gossip.plan.startswith("gossip ")
        assert (local.exchange, local.plan) == ("allgather_topk", "all-gather top-k ring 25% every 2 steps")
        assert (local.step, local.num_exchanges, local.local_steps) == (5, 2, 2)
        assert 0 < local.agreement <= 1
        assert plotted_local["headway/local_steps"] == 2
        assert plotted_local["headway/agreement"] == local.agreement
        assert plotted_local["headway/ratio"] == pytest.approx(0.25, abs=0.01)
