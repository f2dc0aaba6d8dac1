"""What is particular to union top-k: which indices are sent."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.collectives import Executor
from headway.compress import BucketMemory, Shape
from headway.exchange import ExecutorChannel, Job, Plan, exchange_of
from headway.exchange.union_topk import fill_up
from headway.network import Link

LINK = Link(latency_s=0.001, bandwidth_bps=1e8)


@given(numel=st.integers(1, 400), data=st.data())
def test_filling_up_keeps_what_is_given_and_adds_what_is_missing(numel, data):
    given_ = data.draw(st.sets(st.integers(0, numel - 1)))
    k = data.draw(st.integers(len(given_), numel))
    indices = torch.tensor(sorted(given_), dtype=torch.int32)
    filled = fill_up(indices, numel, k, key=7)
    assert filled.dtype == torch.int32
    assert filled.tolist() == sorted(set(filled.tolist()))
    assert len(filled) == k
    assert given_ <= set(filled.tolist()) <= set(range(numel))
    assert torch.equal(filled, fill_up(indices, numel, k, key=7))


def test_other_entries_are_drawn_at_every_step():
    drawn = torch.cat([fill_up(torch.tensor([0]), 1000, 51, key) for key in range(200)])
    counts = torch.bincount(drawn[drawn > 0], minlength=1000)[1:]
    assert counts.min() > 0  # each of them about ten times
    assert counts.max() < 40


def run_peaks(numel: int, ratio: float) -> dict:
    """Every rank has large entries of its own: 3 r + 1 of them from 100 r on."""
    with Executor(timeout_s=20) as executor:
        rank, gradient = executor.rank, torch.full((numel,), 1e-3)
        own = torch.arange(min(3 * rank + 1, numel)) + 100 * rank % numel
        gradient[own % numel] = 100.0 - torch.arange(len(own)).float()
        job = Job(step=0, bucket=0, gradient=gradient, memory=BucketMemory(Shape((numel,))))
        channel = ExecutorChannel.over(executor, LINK)
        exchange_of(Plan(exchange="union_topk", ratio=ratio)).run(job, channel)
        return {"average": job.gradient, "residual": job.memory.residual, "largest": own[:1] % numel}


@pytest.mark.pool
@pytest.mark.parametrize(("numel", "ratio"), [(1000, 0.01), (1000, 0.001), (2, 0.5), (1, 1.0), (300, 1.0)])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_every_rank_has_its_largest_entries_sent(pool, numel, ratio, num_ranks):
    ranks = pool.run(run_peaks, numel, ratio, num_ranks=num_ranks)
    num_sent = min(numel, max(round(numel * ratio), num_ranks))
    for seen in ranks:
        assert torch.equal(seen["average"], ranks[0]["average"])
        assert int((seen["average"] != 0).sum()) == num_sent  # no more, and room that is left is used
        assert all((other["average"][seen["largest"]] != 0).all() for other in ranks)
        assert not seen["residual"][seen["average"] != 0].any()
