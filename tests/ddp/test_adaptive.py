"""`headway.Adaptive`: plans change while a model trains, ranks stay together, and nothing is lost.

No one file of this folder is tested here, but the hook and the tuner together.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import headway
from headway.collectives import control_round as control_round_module
from headway.exchange import Plan
from headway.exchange import channel as channel_module
from tests.ddp.training import (
    ROUNDING,
    Ledger,
    batch,
    bits,
    fixed,
    follow,
    loss_of,
    mlp,
    parameters_of,
    step_once,
    wrap,
)

pytestmark = pytest.mark.pool

EVERY_EXCHANGE = [
    Plan(exchange="allgather_topk", ratio=0.05, fusion="bucket"),
    Plan(exchange="star_topk", ratio=0.1, values="fp16", fusion="step"),
    Plan(exchange="dense", algorithm="native", fusion="bucket"),
    Plan(exchange="var_topk", ratio=0.02, fusion="bucket"),
    Plan(exchange="quantized", bits=4, fusion="step"),
    Plan(exchange="dense", algorithm="two_shot", values="fp16", fusion="step"),
    Plan(exchange="layerwise_topk", ratio=0.05, values="int8", fusion="step"),
    Plan(exchange="mstopk", ratio=0.05, fusion="bucket"),
    Plan(exchange="randomk", ratio=0.1, fusion="step"),
    Plan(exchange="dense", algorithm="ring", fusion="bucket"),
]

FP16 = 2e-3
"""The share that is lost where fp16 values are added up: the rounding of sums is not fed back."""


class Restless:
    """A policy that wants another plan each time it is asked."""

    def __init__(self) -> None:
        self.num_asked = 0

    def __call__(self, front):
        self.num_asked += 1
        scores = np.ones(len(front))
        scores[self.num_asked * 7 % len(front)] = 100.0
        return scores


class Clock:
    """Stands in for the module `time`, on a rank whose clock is ahead."""

    def __init__(self, ahead_s: float) -> None:
        self.ahead_s = ahead_s

    def perf_counter(self) -> float:
        return time.perf_counter() + self.ahead_s


def adaptive(**options) -> headway.Adaptive:
    return headway.Adaptive(**{"timeout_s": 30, "exchanges": ("allgather_topk", "star_topk"), **options})


def train_restlessly(num_steps: int, micro_batches: int = 1, odd_clocks: bool = False) -> dict:
    """Return the plan of each step, the parameters after each, and the decisions."""
    rank = dist.get_rank()
    if odd_clocks:
        control_round_module.time = channel_module.time = Clock(3600.0 * rank)
    ddp = wrap(mlp())
    config = adaptive(policy=Restless(), warm_up=0.5)  # allows more plans at every round
    try:
        handle = headway.attach(ddp, config)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02)
        ledger, lost = Ledger(ddp, handle), []
        plans, sums = [], []
        for step in range(num_steps):
            time.sleep(0.05 if odd_clocks and step % 4 == rank else 0.01)  # some reports come late
            optimizer.zero_grad()
            numbers = range(step * micro_batches, (step + 1) * micro_batches)
            for number in numbers:
                ledger.give(lambda model, number=number: loss_of(model, number))
            with ddp.no_sync():
                for number in numbers[:-1]:
                    loss_of(ddp, number).backward()
            loss_of(ddp, numbers[-1]).backward()
            ledger.apply()
            optimizer.step()
            lost.append(ledger.lost())
            plans.append(handle.records[-1].exchange + f" {handle.records[-1].ratio}")
            sums.append(bits(parameters_of(ddp)))
        said = [decision.words for decision in handle.history]
        handle.close()
    finally:
        control_round_module.time = channel_module.time = time
    return {"plans": plans, "sums": sums, "said": said, "lost": max(lost)}


@pytest.mark.parametrize(("micro_batches", "odd_clocks"), [(1, False), (3, False), (1, True)])
def test_ranks_stay_together_whatever_the_policy_wants(pool, micro_batches, odd_clocks):
    """Also with gradient accumulation, during which plans change, and with clocks an hour apart and late reports."""
    first, *others = pool.run(train_restlessly, 24, micro_batches, odd_clocks, num_ranks=3)
    assert all(other == first for other in others)
    assert len(set(first["plans"])) >= 3
    assert len(first["said"]) >= 3
    assert first["lost"] < FP16  # some plans add fp16 values up


def switch_every_step(num_steps: int) -> tuple[list[bytes], list[str], float]:
    """Return the parameters after each step, the exchanges used, and the share of the gradients that was lost."""
    ddp = wrap(mlp())
    handle = headway.attach(ddp, fixed())
    follow(handle, lambda step: EVERY_EXCHANGE[step % len(EVERY_EXCHANGE)])
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02)
    ledger, sums = Ledger(ddp, handle), []
    for step in range(num_steps):
        ledger.give(lambda model, step=step: loss_of(model, step))
        step_once(ddp, optimizer, step)
        ledger.apply()
        sums.append(bits(parameters_of(ddp)))
    used, lost = [record.exchange for record in handle.records if record.bucket <= 0], ledger.lost()
    handle.close()
    return sums, used, lost


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_exchanges_that_switch_every_step_leave_parameters_equal_to_the_bit(pool, num_ranks):
    first, *others = pool.run(switch_every_step, 32, num_ranks=num_ranks)
    assert all(sums == first[0] for sums, _, _ in others)
    assert len(set(first[0])) == 32
    assert {plan.exchange for plan in EVERY_EXCHANGE} == set(first[1])
    assert first[1][2:12] == [EVERY_EXCHANGE[step % 10].exchange for step in range(2, 12)]
    assert first[2] < FP16


def dense_after_topk() -> tuple[list[float], list[float]]:
    """Return what is left in the residuals after steps of top-k, then dense, then top-k again, and what was lost."""
    plans = {2: "allgather_topk", 3: "allgather_topk", 4: "dense", 5: "dense", 6: "allgather_topk"}
    ddp = wrap(mlp())
    handle = headway.attach(ddp, fixed())
    follow(
        handle, lambda step: Plan(exchange=plans.get(step, "dense"), ratio=0.01, algorithm="native", fusion="bucket")
    )
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02)
    ledger, left, lost = Ledger(ddp, handle), [], []
    for step in range(7):
        ledger.give(lambda model, step=step: loss_of(model, step))
        step_once(ddp, optimizer, step)
        ledger.apply()
        residual = handle.state_dict()["residual"]
        left.append(-1.0 if residual is None else float(residual.norm()))
        lost.append(ledger.lost())
    handle.close()
    return left, lost


def test_a_dense_step_sends_what_top_k_left_and_frees_its_memory(pool):
    for left, lost in pool.run(dense_after_topk, num_ranks=2):
        assert left[:2] == [-1.0, -1.0]
        assert min(left[2:4]) > 0
        assert left[4:6] == [-1.0, -1.0]
        assert left[6] > 0
        assert max(lost) < ROUNDING


def train_with_curves(is_sampled: bool) -> tuple[bytes, int]:
    """Train with one plan of an adaptive run; return the parameters, and how many curves were taken."""
    plan = Plan(exchange="star_topk", ratio=0.05, algorithm="one_shot", broadcast="one_shot", fusion="bucket")
    ddp = wrap(mlp())
    handle = headway.attach(ddp, adaptive())
    controller = follow(handle, lambda _step: plan, is_measured=is_sampled)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02)
    for step in range(10):
        step_once(ddp, optimizer, step)
    handle.close()
    return bits(parameters_of(ddp)), controller.num_curves


def train_with_and_without_curves() -> list[tuple[bytes, int]]:
    return [train_with_curves(is_sampled) for is_sampled in (False, True)]


def test_taking_gain_curves_does_not_change_what_is_learned(pool):
    ranks = pool.run(train_with_and_without_curves, num_ranks=2)
    (_, num_plain), (_, num_sampled) = ranks[0]
    assert num_sampled > num_plain == 0
    assert len({parameters for rank in ranks for parameters, _ in rank}) == 1


def alone() -> tuple[str, tuple, float]:
    ddp = wrap(mlp())
    handle = headway.attach(ddp)
    loss = step_once(ddp, torch.optim.SGD(ddp.parameters(), lr=0.05), 0)
    seen = (handle.plan.exchange, handle.history, loss)
    handle.close()
    return seen


def test_alone_there_is_nothing_to_choose(pool):
    exchange, history, loss = pool.run(alone, num_ranks=1)[0]
    assert (exchange, history) == ("dense", ())
    assert loss > 0


def save_and_go_on() -> tuple[Plan, Plan, bool]:
    """Return the plan before a checkpoint, that after loading it into a new handle, and whether training went on."""

    def chosen(front):
        return np.array([100.0 if plan.ratio > 0.09 else 1.0 for plan in front.plans])

    ddp = wrap(mlp())
    handle = headway.attach(ddp, adaptive(policy=chosen))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02)
    for step in range(8):
        step_once(ddp, optimizer, step)
    before, state, weights = handle.plan, handle.state_dict(), ddp.state_dict()
    handle.close()
    again = wrap(mlp())
    again.load_state_dict(weights)
    other = headway.attach(again, adaptive(policy=chosen))
    other.load_state_dict(state)
    optimizer = torch.optim.SGD(again.parameters(), lr=0.02)
    after = other.plan
    went_on = all(np.isfinite(step_once(again, optimizer, 8 + step)) for step in range(8))
    other.close()
    return before, after, went_on


def test_a_resumed_run_goes_on_with_its_plan(pool):
    seen = pool.run(save_and_go_on, num_ranks=2)
    assert seen[0] == seen[1]
    before, after, went_on = seen[0]
    assert (before.exchange, before.ratio) == ("allgather_topk", pytest.approx(0.1))
    assert after == before
    assert went_on


def with_nan_gradients() -> tuple[list[str], bool, list[int]]:
    """The first gradients are NaN, as with a GradScaler that starts too high: nothing is known of gains then."""
    ddp = wrap(mlp())
    handle = headway.attach(ddp, adaptive(interval=1, policy=most_compressed))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02)
    used = []
    for step in range(24):
        inputs, targets = batch(dist.get_rank(), step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(inputs), targets)
        (loss * (float("nan") if step < 4 else 1.0)).backward()
        if step >= 4:
            optimizer.step()
        used.append(handle.records[-1].exchange)
    finite = bool(parameters_of(ddp).isfinite().all())
    switches = [decision.step for decision in handle.history if decision.is_switch]
    handle.close()
    return used, finite, switches


def test_gradients_that_are_not_finite_at_first_teach_nothing(pool):
    first, second = pool.run(with_nan_gradients, num_ranks=2)
    assert first == second
    used, finite, switches = first
    assert set(used[:5]) == {"dense"}
    assert used[-1] == "allgather_topk"
    assert finite
    assert switches[0] > 4  # nothing was chosen by what was not known


def most_compressed(front):
    """A policy that wants the smallest ratio of all-gather top-k."""
    return np.array([1 / plan.ratio if plan.exchange == "allgather_topk" else 1e-3 for plan in front.plans])


def identity_through_switches(dtype: torch.dtype) -> tuple[list[float], set[str]]:
    """Return the share of all gradients so far that is lost after each step, and the exchanges used."""
    ddp = wrap(mlp().to(dtype))
    handle = headway.attach(ddp, adaptive(policy=most_compressed))
    follow(handle, {8: Plan(exchange="dense", algorithm="ring", fusion="bucket")}.get)
    ledger, lost = Ledger(ddp, handle), []
    for step in range(24):
        ledger.give(lambda model, step=step: loss_of(model, step))
        ddp.zero_grad()
        loss_of(ddp, step).backward()
        ledger.apply()
        lost.append(ledger.lost())
    used = {record.exchange for record in handle.records if record.step > 20}  # a busy machine takes longer to switch
    handle.close()
    return lost, used


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_nothing_is_lost_when_plans_change(pool, dtype):
    """Also at the first switch, and when a dense step sends what is left; with three ranks shares are not exact."""
    for lost, used in pool.run(identity_through_switches, dtype, num_ranks=3):
        assert max(lost) < ROUNDING
        assert used == {"allgather_topk"}


def resume_with_other_plans() -> str:
    """Rank 1 loads a state with another plan: rank 0's counts."""
    ddp = wrap(mlp())
    handle = headway.attach(ddp, adaptive())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02)
    for step in range(4):
        step_once(ddp, optimizer, step)
    state = handle.state_dict()
    plans = handle.config.plans
    state["plan"] = vars(plans[40 + dist.get_rank()])
    handle.load_state_dict(state)
    plan = handle.plan
    for step in range(4):
        step_once(ddp, optimizer, step)
    handle.close()
    return repr(plan)


def test_states_with_different_plans_do_not_part_the_ranks(pool):
    plans = pool.run(resume_with_other_plans, num_ranks=2)
    assert plans[0] == plans[1] == repr(adaptive().plans[40])


def fail_in_policy() -> str:
    ddp = wrap(mlp())
    handle = headway.attach(ddp, adaptive(policy=lambda _front: 1 / 0, timeout_s=5))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02)
    try:
        for step in range(8):
            step_once(ddp, optimizer, step)
    except Exception as error:
        return type(error).__name__
    finally:
        handle.close()
    return "went on"


def test_a_policy_that_fails_ends_training_on_all_ranks(pool):
    assert pool.run(fail_in_policy, num_ranks=2) == ["ZeroDivisionError", "PeerLost"]
