"""`headway.attach(ddp)` with nothing else: plans change while a model trains, and ranks stay together."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import headway
from headway.collectives import council as council_module
from headway.exchange import Plan
from headway.exchange import channel as channel_module
from headway.tuner import all_plans
from tests.ddp.training import batch, bits, mlp, parameters_of, step_once, wrap

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
        council_module.time = channel_module.time = Clock(3600.0 * rank)
    ddp = wrap(mlp())
    config = adaptive(policy=Restless(), warm_up=num_steps)  # as long as it warms up, every council asks the policy
    try:
        handle = headway.attach(ddp, config)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02)
        plans, sums = [], []
        for step in range(num_steps):
            time.sleep(0.05 if odd_clocks and step % 4 == rank else 0.01)  # councils get done; some reports come late
            optimizer.zero_grad()
            for number in range(micro_batches):
                inputs, targets = batch(rank, step * micro_batches + number)
                if number < micro_batches - 1:
                    with ddp.no_sync():
                        nn.functional.cross_entropy(ddp(inputs), targets).backward()
                else:
                    nn.functional.cross_entropy(ddp(inputs), targets).backward()
            optimizer.step()
            plans.append(handle.records[-1].exchange + f" {handle.records[-1].ratio}")
            sums.append(bits(parameters_of(ddp)))
        said = [decision.words for decision in handle.history]
        handle.close()
    finally:
        council_module.time = channel_module.time = time
    return {"plans": plans, "sums": sums, "said": said}


@pytest.mark.parametrize(("micro_batches", "odd_clocks"), [(1, False), (3, False), (1, True)])
def test_ranks_stay_together_whatever_the_policy_wants(pool, micro_batches, odd_clocks):
    """Also with gradient accumulation, during which plans change, and with clocks an hour apart and late reports."""
    first, *others = pool.run(train_restlessly, 24, micro_batches, odd_clocks, num_ranks=3)
    assert all(other == first for other in others)
    assert len(set(first["plans"])) >= 3
    assert len(first["said"]) >= 3


def switch_every_step(num_steps: int) -> tuple[list[bytes], list[str], float]:
    ddp = wrap(mlp())
    handle = headway.attach(ddp, headway.Fixed(link=headway.Link(latency_s=0.001, bandwidth_bps=1e8), timeout_s=20))
    handle._averager._plan_of = lambda step: EVERY_EXCHANGE[step % len(EVERY_EXCHANGE)]
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02)
    losses, sums = [], []
    for step in range(num_steps):
        losses.append(step_once(ddp, optimizer, step))
        sums.append(bits(parameters_of(ddp)))
    used = [record.exchange for record in handle.records if record.bucket <= 0]
    handle.close()
    return sums, used, losses[-1]


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_exchanges_that_switch_every_step_leave_parameters_equal_to_the_bit(pool, num_ranks):
    first, *others = pool.run(switch_every_step, 32, num_ranks=num_ranks)
    assert all(sums == first[0] for sums, _, _ in others)
    assert len(set(first[0])) == 32
    assert {plan.exchange for plan in EVERY_EXCHANGE} == set(first[1])
    assert first[1][2:12] == [EVERY_EXCHANGE[step % 10].exchange for step in range(2, 12)]


def dense_after_topk() -> list[float]:
    """Return what is left in the residuals after steps of top-k, then dense, then top-k again."""
    plans = {2: "allgather_topk", 3: "allgather_topk", 4: "dense", 5: "dense", 6: "allgather_topk"}
    ddp = wrap(mlp())
    handle = headway.attach(ddp, headway.Fixed(link=headway.Link(latency_s=0.001, bandwidth_bps=1e8), timeout_s=20))
    averager = handle._averager
    averager._plan_of = lambda step: Plan(
        exchange=plans.get(step, "dense"), ratio=0.01, algorithm="native", fusion="bucket"
    )
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02)
    left = []
    for step in range(7):
        step_once(ddp, optimizer, step)
        residual = None if averager.memories is None else averager.memories.residual
        left.append(-1.0 if residual is None else float(residual.norm()))
    handle.close()
    return left


def test_a_dense_step_sends_what_top_k_left_and_frees_its_memory(pool):
    for left in pool.run(dense_after_topk, num_ranks=2):
        assert left[:2] == [-1.0, -1.0]
        assert left[2] > 0
        assert left[3] > 0
        assert left[4:6] == [-1.0, -1.0]
        assert left[6] > 0


def train_with_curves(is_sampled: bool) -> tuple[bytes, int]:
    """Train with one plan of an adaptive run; return the parameters, and how many curves were taken."""
    plan = Plan(exchange="star_topk", ratio=0.05, algorithm="one_shot", broadcast="one_shot", fusion="bucket")
    ddp = wrap(mlp())
    handle = headway.attach(ddp, adaptive())
    averager, curves = handle._averager, []
    averager._plan_of = lambda _step: plan
    averager._monitor.is_measured = lambda _step: is_sampled
    averager._informant._advisor.note_curves = lambda *both: curves.append(both)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02)
    for step in range(10):
        step_once(ddp, optimizer, step)
    handle.close()
    return bits(parameters_of(ddp)), len(curves)


def test_taking_gain_curves_does_not_change_what_is_learned(pool):
    plain = pool.run(train_with_curves, False, num_ranks=3)
    sampled = pool.run(train_with_curves, True, num_ranks=3)
    assert sampled[0][1] > 3 * plain[0][1] > 0
    assert len({parameters for parameters, _ in plain + sampled}) == 1


def attach_plainly(journal: str) -> dict:
    ddp = wrap(mlp())
    handle = headway.attach(ddp, headway.Adaptive(journal=journal, timeout_s=30, interval=5))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    losses = [step_once(ddp, optimizer, step) for step in range(30)]
    seen = {
        "plan": handle.plan,
        "history": [(decision.step, decision.plan, decision.cause) for decision in handle.history],
        "network": handle.network,
        "losses": losses,
        "parameters": bits(parameters_of(ddp)),
    }
    handle.close()
    return seen


def test_attach_alone_is_adaptive_and_keeps_a_journal(pool, tmp_path):
    journal = tmp_path / "decisions.jsonl"
    first, second = pool.run(attach_plainly, str(journal), num_ranks=2)
    for name in ("plan", "history", "network", "parameters"):
        assert first[name] == second[name], name
    assert first["history"][0][2] == "start"
    assert np.mean(first["losses"][-5:]) < np.mean(first["losses"][:5])
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [line["step"] for line in lines] == [step for step, *_ in first["history"]]


def default_config() -> str:
    state = headway.HookState()
    kind = type(state.config).__name__
    state.close()
    return kind


def test_the_hook_state_is_adaptive_by_default(pool):
    assert pool.run(default_config, num_ranks=2) == ["Adaptive"] * 2


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


def with_nan_gradients() -> tuple[list[str], bool, list[str]]:
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
    causes = [decision.cause for decision in handle.history if decision.is_switch]
    handle.close()
    return used, finite, causes


def test_gradients_that_are_not_finite_at_first_teach_nothing(pool):
    first, second = pool.run(with_nan_gradients, num_ranks=2)
    assert first == second
    used, finite, causes = first
    assert set(used[:5]) == {"dense"}
    assert used[-1] == "allgather_topk"
    assert finite
    assert causes[0] != "start"


def most_compressed(front):
    """A policy that wants the smallest ratio of all-gather top-k."""
    return np.array([1 / plan.ratio if plan.exchange == "allgather_topk" else 1e-3 for plan in front.plans])


def identity_through_switches(dtype: torch.dtype) -> list[float]:
    """Return, after each step, by how much what has been sent and what is kept differ from all gradients so far."""
    ddp = wrap(mlp().to(dtype))
    handle = headway.attach(ddp, adaptive(policy=most_compressed))
    averager, switch = handle._averager, {8: Plan(exchange="dense", algorithm="ring", fusion="bucket")}
    plan_of = averager._plan_of
    averager._plan_of = lambda step: switch.get(step) or plan_of(step)
    differences, given, received = [], 0, 0
    for step in range(12):
        inputs, targets = batch(dist.get_rank(), step)
        ddp.zero_grad()
        own = torch.autograd.grad(
            nn.functional.cross_entropy(ddp.module(inputs.to(dtype)), targets), list(ddp.parameters())
        )
        own_sum = torch.cat([each.flatten().double() for each in own])
        dist.all_reduce(own_sum)
        nn.functional.cross_entropy(ddp(inputs.to(dtype)), targets).backward()
        given = given + own_sum / dist.get_world_size()
        received = received + torch.cat([parameter.grad.flatten().double() for parameter in ddp.parameters()])
        kept = torch.zeros_like(given).sum()
        if averager.memories is not None and averager.memories.residual is not None:
            kept = averager.memories.residual.double().sum()
        dist.all_reduce(kept)
        differences.append(abs(float(given.sum() - received.sum() - kept / dist.get_world_size())))
    used = {record.exchange for record in handle.records}
    handle.close()
    return [*differences, float("allgather_topk" in used)]


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float32, 1e-4), (torch.float64, 1e-4), (torch.bfloat16, 0.2)])
def test_nothing_is_lost_when_plans_change(pool, dtype, allowed):
    """Also at the first switch, and when a dense step sends what is left; with three ranks shares are not exact."""
    for differences in pool.run(identity_through_switches, dtype, num_ranks=3):
        assert max(differences[:-1]) < allowed
        assert differences[-1] == 1.0


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


def attach_with_journal(path: str) -> str:
    ddp = wrap(mlp())
    try:
        headway.attach(ddp, adaptive(journal=path))
    except ValueError as error:
        return str(error)
    return "nothing was said"


@pytest.mark.parametrize("place", ["file/journal", "."])
def test_a_journal_that_cannot_be_written_is_told_to_all(pool, tmp_path, place):
    (tmp_path / "file").write_text("")
    first, second = pool.run(attach_with_journal, str(tmp_path / place), num_ranks=2)
    assert first.startswith("rank 0 cannot write its journal: ")
    assert second.startswith("rank 0 cannot write its journal")


def disagree() -> str:
    ddp = wrap(mlp())
    try:
        headway.attach(ddp, adaptive(min_ratio=0.001 * (1 + dist.get_rank())))
    except ValueError as error:
        return str(error)
    return "nothing was said"


def test_ranks_with_different_configurations_are_told(pool):
    said = "ranks [1] have another configuration than rank 0: give the same to all"
    assert pool.run(disagree, num_ranks=2) == [said] * 2


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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"policy": "best"}, "policy is 'best', but must be one of balanced, fast"),
        (
            {"min_ratio": 0.2},
            "min_ratio is 0.2 and max_ratio 0.1, but it must be 0.0001 <= min_ratio <= max",
        ),
        ({"max_ratio": "0.1"}, "max_ratio '0.1'"),
        ({"min_ratio": 0.0}, "min_ratio is 0.0"),
        ({"exchanges": ("sparse",)}, "exchanges is .*'sparse'.*, but must be some of dense, allgather_topk"),
        ({"exchanges": "dense"}, "in a tuple"),
        ({"exchanges": ([],)}, "but must be some of dense"),
        ({"journal": 5}, "journal is 5, but must be a path"),
        ({"warm_up": True}, "warm_up is True"),
        ({"warm_up": -1}, "warm_up is -1, but must be a number of steps, 0 or more"),
        ({"interval": 0}, "interval is 0, but must be a number of steps, 1 or more"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"seed": "x"}, "seed is 'x'"),
    ],
)
def test_wrong_options_say_what_to_do(options, said):
    with pytest.raises(ValueError, match=said):
        headway.Adaptive(**options)


def test_dense_is_always_to_choose_from():
    plans = headway.Adaptive(exchanges=("star_topk",)).plans
    assert {plan.exchange for plan in plans} == {"dense", "star_topk"}
    assert plans[:32] == all_plans([], ["dense"])
