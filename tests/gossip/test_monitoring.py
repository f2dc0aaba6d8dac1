"""Statistics and events of the optimizer."""

from __future__ import annotations

import pytest
from torch import nn

from headway import gossip
from headway.compress import StochasticQuantizer
from tests.gossip.loop import network, train, wrapped

pytestmark = pytest.mark.pool


def test_statistics_count_bytes_and_steps(pool):
    for rank, statistics in enumerate(pool.run(count, num_ranks=3)):
        numel, per_block = 1026, 4
        message = 8 + (numel + per_block + (-(numel + per_block)) % 4)
        assert statistics.wire_bytes == 2 * 6 * message, rank
        assert statistics.step == 6
        assert statistics.dense_bytes == 6 * round(2 * 2 / 3 * 4 * numel)
        assert 0.6 < statistics.saved < 1
        assert "step 6:" in str(statistics)
        assert statistics.compress_s > 0


def count() -> gossip.GossipStatistics:
    model = nn.Sequential(nn.Linear(6, 114), nn.Linear(114, 2, bias=False))
    optimizer = wrapped(model, algorithm="dcd", buffer_interval=0)
    train(model, optimizer, range(6))
    statistics = optimizer.statistics()
    optimizer.close()
    return statistics


def test_saturation_is_told_once(pool):
    (event,) = pool.run(saturate, num_ranks=2)[0]
    assert event.kind == "saturated"
    assert "exceed the quantiser's range" in str(event)


def saturate() -> tuple:
    model = network()
    compressor = StochasticQuantizer(bits=4, step=1e-4)
    optimizer = wrapped(model, algorithm="ecd", compressor=compressor)
    train(model, optimizer, range(5))
    assert optimizer.statistics().num_saturated > 100
    events = optimizer.events
    optimizer.close()
    return events
