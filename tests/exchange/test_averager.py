"""Steps, buckets and plans: what the averager does with the buckets of DDP, without DDP."""

from __future__ import annotations

from zlib import crc32

import pytest
import torch

from headway.collectives import Executor
from headway.exchange import Averager, Bucket, BucketLayout, ExecutorChannel, History
from headway.exchange.layout import Layout, regroup
from headway.network import Link
from headway.tuner import Fixed, make_loop

pytestmark = pytest.mark.pool

FAR = Link(latency_s=0.05, bandwidth_bps=1e9)
NEAR = Link(latency_s=1e-6, bandwidth_bps=1e7)
FIRST = (BucketLayout(("d", "c"), (40, 30)), BucketLayout(("b", "a"), (20, 10)))
REBUILT = (BucketLayout(("c", "d"), (30, 40)), BucketLayout(("a", "b"), (10, 20)))


def buckets_of(layout: Layout, rank: int, step: int, done: list[int]) -> list[Bucket]:
    """Gradients that follow from the parameter, not from its bucket."""
    made = []
    for index, bucket in enumerate(layout):
        parts = [
            torch.randn(numel, generator=torch.Generator().manual_seed(crc32(f"{name} {rank} {step}".encode())))
            for name, numel in zip(bucket.names, bucket.numels, strict=True)
        ]
        made.append(
            Bucket(
                index=index,
                gradient=torch.cat(parts),
                layout=bucket,
                is_last=index == len(layout) - 1,
                on_done=lambda index=index: done.append(index),
                submitted_at=0.05 * index,
            )
        )
    return made


def run_layouts(layouts: list, config: Fixed, resumed_at: int | None = None) -> dict:
    with Executor(timeout_s=20) as executor:
        history = History()
        loop = make_loop(config, executor)
        averager = Averager(ExecutorChannel(executor, loop.current.costs), loop, history, seed=0)
        plans, orders, by_parameter = [], [], []
        for step, layout in enumerate(layouts):
            if step == resumed_at:
                averager.resume(step, averager.layout, averager.memories, averager.arrivals_s)
            plans.append(averager.plan.exchange)
            done: list[int] = []
            taken_alone = []
            made = buckets_of(layout, executor.rank, step, done)
            for bucket in made:
                averager.take(bucket)
                taken_alone.append(len(done))
            orders.append(taken_alone)
            by_parameter.append({name: part.clone() for b in made for name, part in b.layout.split(b.gradient).items()})
        memories = averager.memories
        return {
            "plans": plans,
            "orders": orders,
            "records": history.records,
            "averages": by_parameter,
            "residual": memories.residual if memories else None,
            "layout": memories.layout if memories else None,
            "fusion": averager.plan.fusion,
        }


TOPK = Fixed(exchange="allgather_topk", ratio=0.1, fusion="bucket", algorithm="ring", link=FAR)


def test_two_steps_are_dense_and_the_third_waits_for_its_last_bucket(pool):
    for seen in pool.run(run_layouts, [FIRST, REBUILT, REBUILT, REBUILT], TOPK, num_ranks=2):
        assert seen["plans"] == ["dense", "dense", "allgather_topk", "allgather_topk"]
        assert seen["orders"] == [[0, 2], [0, 2], [0, 2], [1, 2]]
        assert {r.algorithm for r in seen["records"][:4]} == {"native"}
        assert {r.ratio for r in seen["records"][4:]} == {0.1}


def test_a_fused_step_is_one_exchange(pool):
    plan = Fixed(exchange="allgather_topk", ratio=0.1, fusion="step", algorithm="ring", link=FAR)
    for seen in pool.run(run_layouts, [FIRST, REBUILT, REBUILT, REBUILT], plan, num_ranks=2):
        assert seen["orders"] == [[0, 2], [0, 2], [0, 2], [0, 2]]
        assert [r.bucket for r in seen["records"]] == [0, 1, 0, 1, -1, -1]
        sent = sum(int((part != 0).sum()) for part in seen["averages"][-1].values())
        assert 10 <= sent <= 20  # the top 10 of 100 from each of two ranks


def test_buckets_of_another_layout_are_regrouped_to_those_of_the_memories(pool):
    """As the first step of a resumed run: the same averages and residuals, however DDP cuts its buckets."""
    straight = pool.run(run_layouts, [FIRST, *[REBUILT] * 6], TOPK, num_ranks=2)
    mixed = pool.run(run_layouts, [FIRST, REBUILT, REBUILT, FIRST, FIRST, REBUILT, REBUILT], TOPK, num_ranks=2)
    for a, b in zip(straight, mixed, strict=True):
        assert torch.equal(a["residual"], b["residual"])
        for step in range(7):
            for name, part in a["averages"][step].items():
                assert torch.equal(part, b["averages"][step][name])


def test_other_buckets_that_stay_are_adopted_with_their_residuals(pool):
    """They hold the same parameters in another order, so adoption may change neither averages nor residuals."""
    straight = pool.run(run_layouts, [REBUILT] * 8, TOPK, num_ranks=2)
    adopted = pool.run(run_layouts, [*[REBUILT] * 3, *[FIRST] * 5], TOPK, num_ranks=2)
    for a, b in zip(straight, adopted, strict=True):
        assert b["orders"][3:6] == [[0, 2]] * 3  # regrouped
        assert b["orders"][6:] == [[1, 2]] * 2  # as they come
        assert b["layout"] == FIRST
        assert torch.equal(regrouped_to(FIRST, a), b["residual"])
        for ours, theirs in zip(a["averages"], b["averages"], strict=True):
            assert all(torch.equal(part, theirs[name]) for name, part in ours.items())


def regrouped_to(layout: Layout, seen: dict) -> torch.Tensor:
    parts = torch.split(seen["residual"], [bucket.shape.numel for bucket in seen["layout"]])
    return torch.cat(regroup(parts, seen["layout"], layout))


def test_a_bucket_that_happens_to_fit_waits_until_all_do(pool):
    """The first of a resumed run may look like the saved one, while the others do not."""
    other = (REBUILT[0], BucketLayout(("b", "a"), (20, 10)))
    layouts = [FIRST, REBUILT, REBUILT, REBUILT, other, REBUILT, REBUILT]
    for seen in pool.run(run_layouts, layouts, TOPK, 4, num_ranks=2):
        assert seen["orders"][3:] == [[1, 2], [0, 2], [0, 2], [1, 2]]


@pytest.mark.parametrize(("link", "fusion"), [(FAR, "step"), (NEAR, "bucket")])
def test_auto_fusion_follows_the_link_and_is_the_same_on_all_ranks(pool, link, fusion):
    config = Fixed(exchange="dense", fusion="auto", algorithm="ring", link=link)
    for seen in pool.run(run_layouts, [FIRST, REBUILT, REBUILT, REBUILT], config, num_ranks=2):
        assert seen["fusion"] == fusion
