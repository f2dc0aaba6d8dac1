"""Readings of handles: totals, plan and exchange."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import headway
from headway.report import Reading, read, scalars
from tests.ddp.training import mlp, step_once, wrap
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


def read_both() -> tuple[Reading, Reading, dict[str, float]]:
    ddp = wrap(mlp())
    handle = headway.attach(ddp, headway.Fixed(exchange="allgather_topk", ratio=0.25, algorithm="ring", fusion="step"))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in range(4):
        step_once(ddp, optimizer, step)
    gossip = wrapped(network())
    found = read(handle), read(gossip), scalars(handle)
    handle.close()
    gossip.close()
    return found


@pytest.mark.pool
def test_hooks_and_gossip_name_their_exchange_and_plan(pool):
    for hook, gossip, plotted in pool.run(read_both, num_ranks=2):
        assert (hook.exchange, hook.plan) == ("allgather_topk", "all-gather top-k ring 25% (one exchange a step)")
        assert 0 < hook.wire_bytes < hook.dense_bytes
        assert plotted["headway/ratio"] == pytest.approx(0.25, abs=0.01)
        assert plotted["headway/switches"] == 0
        assert gossip.exchange == gossip.plan
        assert gossip.plan.startswith("gossip ")
