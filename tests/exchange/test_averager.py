"""Steps, buckets and plans: what the averager does with the buckets of DDP, without DDP."""

from __future__ import annotations

from zlib import crc32

import pytest
import torch

from headway.collectives import Executor
from headway.exchange import Averager, Bucket, BucketLayout, CostModel, ExecutorChannel, History, StepPlan
from headway.exchange.layout import Layout, regroup
from headway.network import Calibration, Link
from headway.tuner import Fixed, make_loop

pytestmark = pytest.mark.pool

FAR = Link(latency_s=0.05, bandwidth_bps=1e9)
NEAR = Link(latency_s=1e-6, bandwidth_bps=1e7)
FIRST = (BucketLayout(("d", "c"), (40, 30)), BucketLayout(("b", "a"), (20, 10)))
REBUILT = (BucketLayout(("c", "d"), (30, 40)), BucketLayout(("a", "b"), (10, 20)))


def buckets_of(layout: Layout, rank: int, step: int, done: list[int], loss_scale: float | None = None) -> list[Bucket]:
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
                loss_scale=loss_scale if index == 0 else None,
            )
        )
    return made


def run_layouts(
    layouts: list,
    config: Fixed,
    resumed_at: int | None = None,
    spoiled: tuple = (),
    loss_scale: float | None = None,
) -> dict:
    """Run a step for each layout; ``spoiled``: the (rank, step, bucket) of gradients with Inf."""
    with Executor(timeout_s=20) as executor:
        history = History()
        loop = make_loop(config, executor)
        averager = Averager(ExecutorChannel(executor, loop.current.costs), loop, history, seed=0)
        plans, orders, by_parameter, given, residuals = [], [], [], [], []
        for step, layout in enumerate(layouts):
            if step == resumed_at:
                averager.resume(step, averager.layout, averager.memories, averager.arrivals_s)
            plans.append(averager.plan.exchange)
            done: list[int] = []
            taken_alone = []
            made = buckets_of(layout, executor.rank, step, done, loss_scale)
            for bucket in made:
                if (executor.rank, step, bucket.index) in spoiled:
                    bucket.gradient[3] = torch.inf
            given.append(torch.cat([bucket.gradient for bucket in made]))
            for bucket in made:
                averager.take(bucket)
                taken_alone.append(len(done))
            orders.append(taken_alone)
            by_parameter.append({name: part.clone() for b in made for name, part in b.layout.split(b.gradient).items()})
            had_memory = averager.memories is not None and averager.memories.residual is not None
            residuals.append(averager.memories.residual.clone() if had_memory else None)
        memories = averager.memories
        return {
            "gradients": given,
            "residuals": residuals,
            "plans": plans,
            "orders": orders,
            "records": history.records,
            "averages": by_parameter,
            "residual": memories.residual if memories else None,
            "layout": memories.layout if memories else None,
            "fusion": averager.plan.fusion,
        }


TOPK = Fixed(exchange="allgather_topk", ratio=0.1, fusion="bucket", algorithm="ring", link=FAR)


def test_it_compresses_from_the_first_step_which_waits_for_its_last_bucket(pool):
    for seen in pool.run(run_layouts, [REBUILT] * 3, TOPK, num_ranks=2):
        assert seen["orders"] == [[0, 2], [1, 2], [1, 2]]
        assert {(r.exchange, r.algorithm, r.ratio) for r in seen["records"]} == {("allgather_topk", "ring", 0.1)}
        assert [r.step for r in seen["records"]] == [0, 0, 1, 1, 2, 2]


def test_plain_sums_never_wait_for_other_buckets(pool):
    plain = Fixed(exchange="dense", fusion="bucket", algorithm="native", link=FAR)
    for seen in pool.run(run_layouts, [FIRST, REBUILT, REBUILT], plain, num_ranks=2):
        assert {r.was_alone for r in seen["records"] if r.bucket == 0} == {False}  # as the other one is under way
        assert seen["layout"] is None


def test_a_fused_step_is_one_exchange(pool):
    plan = Fixed(exchange="allgather_topk", ratio=0.1, fusion="step", algorithm="ring", link=FAR)
    for seen in pool.run(run_layouts, [FIRST, REBUILT, REBUILT, REBUILT], plan, num_ranks=2):
        assert seen["orders"] == [[0, 2]] * 4
        assert [r.bucket for r in seen["records"]] == [-1] * 4
        sent = sum(int((part != 0).sum()) for part in seen["averages"][-1].values())
        assert 10 <= sent <= 20  # the top 10 of 100 from each of two ranks


def test_the_first_buckets_are_kept_until_those_of_ddp_have_settled(pool):
    """Whatever DDP makes of them: the same averages and residuals, with all residuals in the buckets that stay."""
    stay = (BucketLayout(("a", "d"), (10, 40)), BucketLayout(("c", "b"), (30, 20)))
    one = pool.run(run_layouts, [FIRST, *[stay] * 7], TOPK, num_ranks=2)
    other = pool.run(run_layouts, [FIRST, FIRST, *[stay] * 6], TOPK, num_ranks=2)
    for a, b in zip(one, other, strict=True):
        assert a["orders"] == [[0, 2]] * 6 + [[1, 2]] * 2  # the sixth step shows the buckets to the controller
        assert a["layout"] == b["layout"] == stay
        assert torch.equal(a["residual"], b["residual"])
        check_same_averages(a, b)
        assert nothing_is_lost(one)


def test_buckets_of_another_layout_are_regrouped_to_those_of_the_memories(pool):
    """As the first steps of a resumed run: the same averages and residuals, however DDP cuts its buckets."""
    straight = pool.run(run_layouts, [REBUILT] * 10, TOPK, num_ranks=2)
    mixed = pool.run(run_layouts, [*[REBUILT] * 6, FIRST, FIRST, REBUILT, REBUILT], TOPK, 6, num_ranks=2)
    for a, b in zip(straight, mixed, strict=True):
        assert b["orders"][6:8] == [[0, 2]] * 2
        assert b["layout"] == REBUILT
        assert torch.equal(a["residual"], b["residual"])
        check_same_averages(a, b)


def test_other_buckets_that_stay_are_adopted_with_their_residuals(pool):
    """They hold the same parameters in another order, so adoption may change neither averages nor residuals."""
    straight = pool.run(run_layouts, [REBUILT] * 11, TOPK, num_ranks=2)
    adopted = pool.run(run_layouts, [*[REBUILT] * 6, *[FIRST] * 5], TOPK, num_ranks=2)
    for a, b in zip(straight, adopted, strict=True):
        assert b["orders"][6:10] == [[0, 2]] * 4  # regrouped, and then shown to the controller
        assert b["orders"][10:] == [[1, 2]]  # as they come
        assert b["layout"] == FIRST
        assert torch.equal(regrouped_to(FIRST, a), b["residual"])
        check_same_averages(a, b)


def check_same_averages(a: dict, b: dict) -> None:
    for ours, theirs in zip(a["averages"], b["averages"], strict=True):
        assert all(torch.equal(part, theirs[name]) for name, part in ours.items())


def nothing_is_lost(ranks: list[dict]) -> bool:
    """Whether averages applied and residuals kept come to the gradients given."""
    kept = {}
    for seen in ranks:
        parts = torch.split(seen["residual"], [bucket.shape.numel for bucket in seen["layout"]])
        for bucket, part in zip(seen["layout"], parts, strict=True):
            for name, residual in bucket.split(part).items():
                kept[name] = kept.get(name, 0) + residual / len(ranks)
    given = dict.fromkeys(kept, 0)
    for rank in range(len(ranks)):
        for step in range(len(ranks[0]["averages"])):
            for bucket in buckets_of(FIRST, rank, step, []):
                for name, part in bucket.layout.split(bucket.gradient).items():
                    given[name] = given[name] + part / len(ranks)
    applied = {name: sum(averages[name] for averages in ranks[0]["averages"]) for name in kept}
    return all(torch.allclose(applied[name] + kept[name], given[name], atol=1e-5) for name in kept)


def regrouped_to(layout: Layout, seen: dict) -> torch.Tensor:
    parts = torch.split(seen["residual"], [bucket.shape.numel for bucket in seen["layout"]])
    return torch.cat(regroup(parts, seen["layout"], layout))


def test_if_the_first_bucket_happens_to_fit_only_the_others_are_regrouped(pool):
    other = (REBUILT[0], BucketLayout(("b", "a"), (20, 10)))
    straight = pool.run(run_layouts, [REBUILT] * 10, TOPK, num_ranks=2)
    mixed = pool.run(run_layouts, [*[REBUILT] * 7, other, REBUILT, REBUILT], TOPK, num_ranks=2)
    for a, b in zip(straight, mixed, strict=True):
        assert b["orders"][6:] == [[1, 2], [1, 2], [0, 2], [1, 2]]
        assert torch.equal(a["residual"], b["residual"])
        check_same_averages(a, b)


@pytest.mark.parametrize(("link", "fusion"), [(FAR, "step"), (NEAR, "bucket")])
def test_auto_fusion_follows_the_link_and_is_the_same_on_all_ranks(pool, link, fusion):
    config = Fixed(exchange="dense", fusion="auto", algorithm="ring", link=link)
    for seen in pool.run(run_layouts, [FIRST, REBUILT, REBUILT, REBUILT], config, num_ranks=2):
        assert seen["fusion"] == fusion


@pytest.mark.parametrize("fusion", ["bucket", "step"])
@pytest.mark.parametrize("exchange", ["allgather_topk", "star_topk", "quantized"])
def test_when_one_bucket_overflows_no_bucket_of_the_step_loses_anything(pool, exchange, fusion):
    """The step will be skipped: what the others have sent is back in the memories, and the next step is a usual one."""
    config = Fixed(exchange=exchange, ratio=0.1, fusion=fusion, algorithm="ring", link=FAR)
    for bucket in (0, 1):
        ranks = pool.run(run_layouts, [REBUILT] * 7, config, None, ((1, 4, bucket),), num_ranks=2)
        for rank in ranks:
            places = {0: slice(0, 70), 1: slice(70, 100)}
            overflowed = slice(0, 100) if fusion == "step" else places.pop(bucket)
            assert torch.equal(rank["residuals"][4][overflowed], rank["residuals"][3][overflowed])
            assert not torch.equal(rank["residuals"][5], rank["residuals"][4])
            assert all(part.isfinite().all() for part in rank["averages"][5].values())
        before, gradients, after = (
            sum(rank[name][step] for rank in ranks)
            for name, step in (("residuals", 3), ("gradients", 4), ("residuals", 4))
        )
        for other in places.values() if fusion == "bucket" else ():
            torch.testing.assert_close(after[other], (before + gradients)[other])


@pytest.mark.parametrize("exchange", ["allgather_topk", "star_topk", "quantized"])
def test_with_a_loss_scaler_an_overflow_leaves_the_memories_of_all_buckets_as_they_were(pool, exchange):
    config = Fixed(exchange=exchange, ratio=0.1, fusion="bucket", algorithm="ring", link=FAR)
    for bucket in (0, 1):
        for rank in pool.run(run_layouts, [REBUILT] * 7, config, None, ((1, 4, bucket),), 1024.0, num_ranks=2):
            assert rank["orders"][4] == [1, 2]  # each bucket was exchanged as it came
            assert torch.equal(rank["residuals"][4], rank["residuals"][3])
            assert not torch.equal(rank["residuals"][5], rank["residuals"][4])


def switch_to_dense(spoil: bool, unused: bool) -> dict:
    """Take steps of top-k, and then a dense one, in which rank 0 overflows or the parameter "d" is unused."""
    with Executor(timeout_s=20) as executor:
        topk = ScriptedPlan(TOPK.plan)
        averager = Averager(ExecutorChannel.over(executor, FAR), topk, History(), seed=0, may_skip_parameters=unused)
        kept = []
        for step in range(7):
            topk.plan = Fixed(exchange="dense", fusion="step", algorithm="ring").plan if step == 6 else TOPK.plan
            made = buckets_of(REBUILT, executor.rank, step, [])
            if step == 6:
                kept = [averager.memories.residual.clone()]
                if spoil and executor.rank == 0:
                    made[1].gradient[3] = torch.inf
                if unused:
                    made[0].layout.split(made[0].gradient)["d"].zero_()
            for bucket in made:
                averager.take(bucket)
        residual = averager.memories.residual
        return {"before": kept[0], "after": residual, "averages": [bucket.gradient for bucket in made]}


class ScriptedPlan:
    """A controller that says what it is told."""

    def __init__(self, plan) -> None:
        self.plan = plan

    @property
    def current(self) -> StepPlan:
        return StepPlan(plan=self.plan, costs=CostModel(2, Calibration(link=FAR)))

    def begin_step(self, step): ...

    def set_buckets(self, shapes, arrivals_s, curves=()): ...

    def await_plan(self): ...

    def observe(self, record, curves=None): ...

    def end_step(self, last_arrival_s): ...


def test_a_dense_step_that_overflows_keeps_the_residuals_of_earlier_plans(pool):
    for seen in pool.run(switch_to_dense, True, False, num_ranks=2):
        assert not seen["averages"][1].isfinite().all()
        assert torch.equal(seen["after"], seen["before"])


def test_a_dense_step_keeps_the_residuals_of_parameters_that_it_does_not_use(pool):
    for seen in pool.run(switch_to_dense, False, True, num_ranks=2):
        of_d = slice(30, 70)
        assert torch.equal(seen["after"][of_d], seen["before"][of_d])
        assert not seen["averages"][0][of_d].any()
        assert not seen["after"][:30].any()  # the others have been sent


def test_a_dense_step_frees_what_it_has_sent(pool):
    assert [seen["after"] for seen in pool.run(switch_to_dense, False, False, num_ranks=2)] == [None, None]
