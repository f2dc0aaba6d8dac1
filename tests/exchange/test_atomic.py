"""An exchange is atomic: where any rank overflows, the memory of every rank is what it was, to the bit."""

from __future__ import annotations

import math

import pytest
import torch

from headway.collectives import Executor
from headway.compress import BucketMemory, Shape
from headway.exchange import EXCHANGES, ExecutorChannel, Job, Plan, exchange_of
from headway.exchange.curves import take_curves
from headway.network import Link

pytestmark = pytest.mark.pool

LINK = Link(latency_s=0.001, bandwidth_bps=1e8)
SHAPE = Shape((700, 31, 269))
NUM_RANKS = 3
NUM_STEPS = 12
SPOILED = {(0, 2): math.nan, (1, 3): math.inf, (2, 5): -math.inf, (0, 6): math.inf, (1, 8): math.nan, (2, 9): math.nan}
"""Which rank overflows at which step, and how: each rank once with Inf and once with NaN, in a row and apart."""

PLANS = [
    Plan(exchange=name, values=values, bits=bits, ratio=0.05)
    for name, kind in EXCHANGES.items()
    for values in kind.description.value_formats
    for bits in kind.description.bits or (8,)
]


def gradient_of(rank: int, step: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(SHAPE.numel, generator=torch.Generator().manual_seed(100 * rank + step)).pow(3).to(dtype)


def run_steps(plan: Plan, dtype: torch.dtype, spoiled: dict, left_out: tuple, takes_curves: bool) -> list[dict]:
    """Run an exchange; a rank that overflows at a step has Inf or NaN in one entry, another one each time."""
    with Executor(timeout_s=20) as executor:
        channel = ExecutorChannel.over(executor, LINK)
        memory = BucketMemory(SHAPE, residual=gradient_of(executor.rank, 99, torch.float32))
        seen = []
        for step in range(NUM_STEPS):
            if step in left_out:
                seen.append({})
                continue
            gradient = gradient_of(executor.rank, step, dtype)
            if (executor.rank, step) in spoiled:
                gradient[(97 * step) % SHAPE.numel] = spoiled[executor.rank, step]
            before, threshold = memory.residual.clone(), str(memory.whole.threshold)
            job = Job(step=step, bucket=0, gradient=gradient, memory=memory)
            if takes_curves:
                take_curves(job)
            gain = exchange_of(plan).run(job, channel)
            is_same = torch.equal(memory.residual.view(torch.int32), before.view(torch.int32))
            seen.append(
                {"average": job.gradient.float(), "residual": memory.residual.clone(), "gain": gain}
                | {"is_same": is_same, "has_same_threshold": str(memory.whole.threshold) == threshold}
            )
        return seen


@pytest.mark.parametrize(
    ("dtype", "takes_curves"), [(torch.float32, False), (torch.float32, True), (torch.float16, False)], ids=str
)
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: "-".join(map(str, plan.form)))
def test_a_step_in_which_a_rank_overflows_leaves_no_trace(pool, plan, dtype, takes_curves):
    steps = sorted(step for _, step in SPOILED)
    ranks = pool.run(run_steps, plan, dtype, SPOILED, (), takes_curves, num_ranks=NUM_RANKS)
    without = pool.run(run_steps, plan, dtype, {}, tuple(steps), takes_curves, num_ranks=NUM_RANKS)
    for rank, (seen, expected) in enumerate(zip(ranks, without, strict=True)):
        for step in range(NUM_STEPS):
            if step in steps:
                assert seen[step]["is_same"], (rank, step)
                assert seen[step]["has_same_threshold"], (rank, step)
                assert not seen[step]["average"].isfinite().any()
                assert math.isnan(seen[step]["gain"])
            else:
                assert not seen[step]["is_same"]
                assert torch.equal(seen[step]["average"], expected[step]["average"]), (rank, step)
                assert torch.equal(seen[step]["residual"], expected[step]["residual"]), (rank, step)
        for mine, first in zip(seen, ranks[0], strict=True):
            assert torch.equal(mine["average"].view(torch.int32), first["average"].view(torch.int32))


def run_constant(plan: Plan, value: float, dtype: torch.dtype) -> dict:
    """Average the same large value at all entries of all ranks."""
    with Executor(timeout_s=20) as executor:
        memory = BucketMemory(SHAPE, residual=torch.zeros(SHAPE.numel))
        job = Job(step=0, bucket=0, gradient=torch.full((SHAPE.numel,), value, dtype=dtype), memory=memory)
        exchange_of(plan).run(job, ExecutorChannel.over(executor, LINK))
        return {"average": job.gradient.double(), "residual": memory.residual.double()}


@pytest.mark.parametrize("num_ranks", [3, 5])
@pytest.mark.parametrize("algorithm", ["native", "ring", "tree"])
@pytest.mark.parametrize("name", ["dense", "star_topk", "var_topk", "randomk"])
def test_fp16_sums_of_whatever_is_finite_are_finite_and_nothing_is_lost(pool, name, algorithm, num_ranks):
    """G is far beyond what fp16 holds; every rank sends the most of which N can be added, and keeps the rest."""
    plan = Plan(exchange=name, ratio=1.0, values="fp16", algorithm=algorithm)
    for seen in pool.run(run_constant, plan, 1e6, torch.float32, num_ranks=num_ranks):
        assert seen["average"].isfinite().all()
        assert (seen["average"] > 0.99 * 65504).all()
        torch.testing.assert_close(
            seen["average"] + seen["residual"], torch.full_like(seen["average"], 1e6), rtol=1e-4, atol=0
        )


def run_half(plan: Plan) -> dict:
    """Average gradients that fit fp16 while their sums with the residual do not."""
    with Executor(timeout_s=20) as executor:
        memory = BucketMemory(SHAPE, residual=torch.full((SHAPE.numel,), 50_000.0))
        gradient = torch.full((SHAPE.numel,), 40_000.0, dtype=torch.float16)
        job = Job(step=0, bucket=0, gradient=gradient, memory=memory)
        exchange_of(plan).run(job, ExecutorChannel.over(executor, LINK))
        return {"average": job.gradient.double(), "residual": memory.residual.double()}


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: "-".join(map(str, plan.form)))
def test_an_average_that_a_half_precision_gradient_cannot_hold_stays_in_the_memory(pool, plan):
    for seen in pool.run(run_half, plan, num_ranks=3):
        assert seen["average"].isfinite().all()
        assert seen["average"].max() > 0.95 * 65504
        left = seen["average"] + seen["residual"]
        torch.testing.assert_close(left, torch.full_like(left, 90_000.0), rtol=1e-3, atol=0)
