from __future__ import annotations

import pytest
import torch

import headway
from tests.ddp.training import fixed, mlp, step_once, wrap

pytestmark = pytest.mark.pool

NUM_STEPS = 6


def train_and_count() -> tuple[headway.ddp.Statistics, tuple]:
    ddp = wrap(mlp())
    handle = headway.attach(ddp, fixed(exchange="star_topk", ratio=0.05))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in range(NUM_STEPS):
        step_once(ddp, optimizer, step)
    seen = handle.statistics(), handle.records
    handle.close()
    return seen


def test_statistics_are_the_sums_of_the_records(pool):
    for statistics, records in pool.run(train_and_count, num_ranks=2):
        assert statistics.step == NUM_STEPS
        assert set(statistics.exchanges) == {"star_topk"}  # from the first step on
        for name in ("wire_bytes", "dense_bytes"):
            assert getattr(statistics, name) == sum(getattr(record, name) for record in records) > 0
        assert statistics.saved == 1 - statistics.wire_bytes / statistics.dense_bytes
        assert 0.3 < statistics.saved < 1
        for name in ("compress", "wait", "transfer"):
            assert statistics.seconds[name] == pytest.approx(sum(getattr(record, f"{name}_s") for record in records))
        said = (
            f"step 6: {statistics.wire_bytes:,} of {statistics.dense_bytes:,} bytes sent, {statistics.saved:.1%} saved"
        )
        assert str(statistics).startswith(said)


def test_nothing_sent_is_nothing_saved():
    assert headway.ddp.Statistics(step=0, exchanges={}).saved == 0
