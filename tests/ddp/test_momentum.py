"""Momentum that the optimizer has handed over: sent whole it is SGD's, compressed it is that of the equations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import headway
from headway.ddp.momentum import HandedOver, why_not
from headway.kernels import select_topk
from tests.ddp.test_checkpoint import through_a_file
from tests.ddp.training import EXCHANGES, bits, fixed, loss_of, mlp, parameters_of, step_once, wrap

NUM_STEPS = 10
SGD = {"lr": 0.05, "momentum": 0.9}


def train(config: Any, options: dict) -> list[Tensor]:
    """Train, with the hook if there is a config, and return the parameters after each step."""
    ddp = wrap(mlp())
    optimizer = torch.optim.SGD(ddp.parameters(), **options)
    handle = None if config is None else headway.attach(ddp, config, optimizer=optimizer)
    seen = []
    for step in range(NUM_STEPS):
        step_once(ddp, optimizer, step)
        seen.append(parameters_of(ddp).clone())
    if handle is not None:
        handle.close()
        assert {name: optimizer.param_groups[0][name] for name in options} == options
    return seen


@pytest.mark.pool
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("fusion", ["bucket", "step"])
def test_dense_is_sgd_with_momentum_to_the_bit(pool, fusion, nesterov):
    options = {**SGD, "nesterov": nesterov}
    expected = pool.run(train, None, options, num_ranks=2)
    found = pool.run(train, fixed(fusion=fusion, algorithm="native"), options, num_ranks=2)
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.pool
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("options", [{"exchange": "dense", "values": "fp16"}, {"exchange": "quantized"}], ids=str)
def test_what_is_sent_whole_is_sgd_with_momentum_and_weight_decay_to_rounding(pool, options, nesterov):
    sgd = {**SGD, "nesterov": nesterov, "weight_decay": 0.01}
    expected = pool.run(train, None, sgd, num_ranks=3)[0]
    for ours in pool.run(train, fixed(fusion="step", **options), sgd, num_ranks=3):
        moved = (expected[-1] - expected[0]).norm()
        assert (ours[-1] - expected[-1]).norm() < 0.02 * moved


class Equations:
    """All-gather top-k of 5% with momentum correction, by its equations, with a model of its own."""

    def __init__(self, options: dict) -> None:
        self.model, self.options = mlp(), options
        self.numels = [parameter.numel() for parameter in self.model.parameters()]
        self.u, self.v = torch.zeros(sum(self.numels)), torch.zeros(sum(self.numels))

    def step(self, step: int) -> None:
        self.model.zero_grad()
        loss_of(self.model, step).backward()
        g = torch.cat([parameter.grad.flatten() for parameter in self.model.parameters()])
        g += self.options.get("weight_decay", 0.0) * parameters_of(self.model)
        m = self.options["momentum"]
        self.u = m * self.u + g
        self.v += m * self.u + g if self.options.get("nesterov") else self.u
        indices = select_topk(self.v, -(-self.v.numel() * 5 // 100)).long()
        sent = torch.zeros_like(self.v).index_copy(0, indices, self.v[indices])
        self.u[indices] = self.v[indices] = 0
        dist.all_reduce(sent)
        update = torch.split(sent * (self.options["lr"] / dist.get_world_size()), self.numels)
        with torch.no_grad():
            for parameter, part in zip(self.model.parameters(), update, strict=True):
                parameter -= part.view_as(parameter)


def follow(config: headway.Fixed, options: dict) -> list[tuple[Tensor, Tensor]]:
    """Train, and do the same by the equations; return the parameters of both after each step."""
    ddp, equations = wrap(mlp()), Equations(options)
    optimizer = torch.optim.SGD(ddp.parameters(), **options)
    seen = []
    with headway.attach(ddp, config, optimizer=optimizer):
        for step in range(NUM_STEPS):
            step_once(ddp, optimizer, step)
            equations.step(step)
            seen.append((parameters_of(ddp).clone(), parameters_of(equations.model).clone()))
    return seen


@pytest.mark.pool
@pytest.mark.parametrize("options", [{}, {"nesterov": True}, {"weight_decay": 0.01}], ids=str)
def test_compressed_steps_follow_the_equations(pool, options):
    config = fixed(exchange="allgather_topk", ratio=0.05, fusion="step")
    for seen in pool.run(follow, config, {**SGD, **options}, num_ranks=3):
        for ours, theirs in seen:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def interrupt(options: dict, at: int) -> tuple[bytes, bytes]:
    """Train 12 steps in one go, and again with a stop on the way."""

    def make() -> tuple[Any, Any, Any]:
        ddp = wrap(mlp())
        optimizer = torch.optim.SGD(ddp.parameters(), **SGD, weight_decay=0.01)
        return ddp, headway.attach(ddp, fixed(**options), optimizer=optimizer), optimizer

    ddp, handle, optimizer = make()
    for step in range(12):
        if step == at:
            states = {"model": ddp.module.state_dict(), "sgd": optimizer.state_dict(), "headway": handle.state_dict()}
            saved = through_a_file(states)
        step_once(ddp, optimizer, step)
    straight = bits(parameters_of(ddp))
    handle.close()
    assert saved["sgd"]["param_groups"][0]["momentum"] == SGD["momentum"]  # loadable without the hook
    ddp, handle, optimizer = make()
    ddp.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["sgd"])
    handle.load_state_dict(saved["headway"])
    for step in range(at, 12):
        step_once(ddp, optimizer, step)
    resumed = bits(parameters_of(ddp))
    handle.close()
    return straight, resumed


@pytest.mark.pool
@pytest.mark.parametrize("fusion", ["bucket", "step"])
@pytest.mark.parametrize("name", EXCHANGES)
def test_a_resumed_run_is_equal_to_the_bit(pool, name, fusion):
    results = pool.run(interrupt, {"exchange": name, "ratio": 0.05, "fusion": fusion}, 7, num_ranks=2)
    assert all(straight == resumed == results[0][0] for straight, resumed in results)


def overflow(options: dict) -> dict:
    """Train with Inf in the gradient of rank 1 at step 5; return what is kept before and after."""
    ddp = wrap(mlp())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(ddp.parameters(), **SGD)
    handle = headway.attach(ddp, fixed(**options), optimizer=optimizer, scaler=scaler)
    seen = {}
    for step in range(7):
        optimizer.zero_grad()
        if step in (5, 6):
            seen[step] = handle.state_dict()
        loss = loss_of(ddp, step)
        loss = loss * torch.inf if (dist.get_rank(), step) == (1, 5) else loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update(1024.0)
    handle.close()
    return {name: (seen[5][name], seen[6][name]) for name in ("residual", "velocity")}


@pytest.mark.pool
@pytest.mark.parametrize("fusion", ["bucket", "step"])
@pytest.mark.parametrize("exchange", ["dense", "allgather_topk", "star_topk", "union_topk", "quantized"])
def test_an_overflow_leaves_velocity_and_residual_as_they_were(pool, exchange, fusion):
    for kept in pool.run(overflow, {"exchange": exchange, "ratio": 0.05, "fusion": fusion}, num_ranks=2):
        before, after = kept["velocity"]
        assert before.any()
        assert torch.equal(before, after)
        before, after = kept["residual"]
        assert exchange == "dense" if before is None else torch.equal(before, after)


class Switching:
    """A policy that asks for dense steps and compressed ones in turns."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, front: Any) -> np.ndarray:
        self.num_calls += 1
        wanted = "dense" if self.num_calls % 2 else "allgather_topk"
        return np.array([2.0 if plan.exchange == wanted else 1.0 for plan in front.plans])


def switch_plans() -> dict:
    """Give gradients for 20 steps and none for 40, while dense steps and compressed ones take turns."""
    torch.manual_seed(0)
    model = nn.Linear(40, 30, bias=False)
    ddp = wrap(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0, momentum=0.5)
    ratios = {"min_ratio": 0.1, "max_ratio": 0.1, "warm_up": 0}
    config = headway.Adaptive(policy=Switching(), exchanges=("dense", "allgather_topk"), interval=3, **ratios)
    before = model.weight.detach().clone()
    with headway.attach(ddp, config, optimizer=optimizer) as handle:
        for step in range(60):
            optimizer.zero_grad()
            (ddp(inputs_of(step)) * (dist.get_rank() + 1)).sum().backward()
            optimizer.step()
        return {
            "moved": before - model.weight.detach(),
            "residual": handle.state_dict()["residual"],
            "exchanges": {record.exchange for record in handle.records},
        }


def inputs_of(step: int) -> Tensor:
    return torch.randn(4, 40, generator=torch.Generator().manual_seed(step)) if step < 20 else torch.zeros(4, 40)


@pytest.mark.pool
def test_ranks_stay_equal_and_momentum_is_kept_when_plans_change(pool):
    ranks = pool.run(switch_plans, num_ranks=2)
    given = sum(1.5 * inputs_of(step).sum(0) for step in range(20)).expand(30, 40)
    for rank in ranks:
        assert torch.equal(rank["moved"], ranks[0]["moved"])
        assert rank["exchanges"] == {"dense", "allgather_topk"}
        assert rank["residual"] is None or rank["residual"].abs().max() < 1e-3
    share = (ranks[0]["moved"] * given).sum() / given.square().sum()
    assert 1.2 < share < 2.001  # 1 / (1 - 0.5) = 2 if nothing were masked, 1 if everything were


def test_why_an_optimizer_keeps_its_momentum():
    one, two = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    groups = [{"params": [one], "momentum": 0.9}, {"params": [two], "momentum": 0.5}]
    assert why_not(torch.optim.SGD([one], lr=1.0, momentum=0.9), [one]) is None
    assert why_not(torch.optim.SGD([one], lr=1.0), [one]) == "it has none"
    assert "different momenta" in why_not(torch.optim.SGD(groups, lr=1.0), [one, two])
    assert "all parameters" in why_not(torch.optim.SGD([one], lr=1.0, momentum=0.9), [one, two])
    assert "dampening" in why_not(torch.optim.SGD([one], lr=1.0, momentum=0.9, dampening=0.1), [one])
    assert "Adam has no momentum" in why_not(torch.optim.Adam([one]), [one])


class TestHandedOver:
    def test_what_a_schedule_sets_is_taken_over_and_given_back(self):
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)
        handed_over = HandedOver(optimizer)
        group = optimizer.param_groups[0]
        assert (group["momentum"], group["weight_decay"], group["nesterov"]) == (0, 0, False)
        group["momentum"] = 0.8  # as OneCycleLR does
        handed_over.take_over()
        assert group["momentum"] == 0
        assert (handed_over.momentum.factor, handed_over.momentum.is_nesterov) == (0.8, True)
        handed_over.give_back()
        assert (group["momentum"], group["weight_decay"], group["nesterov"]) == (0.8, 0.01, True)
        handed_over.give_back()
        assert group["momentum"] == 0.8

    def test_decay_is_that_of_each_group_and_follows_the_loss_scale(self):
        one, two = nn.Parameter(torch.ones(2)), nn.Parameter(torch.full((3,), 2.0))
        groups = [{"params": [one], "weight_decay": 0.5}, {"params": [two]}]
        handed_over = HandedOver(torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.25))
        gradient = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0])
        handed_over.add_decay(gradient, [one, two], scale=4.0, skips_zeros=False)
        assert gradient.tolist() == [3.0, 3.0, 3.0, 3.0, 3.0]
        gradient = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0])
        handed_over.add_decay(gradient, [one, two], scale=1.0, skips_zeros=True)
        assert gradient.tolist() == [0.0, 0.0, 1.5, 1.5, 1.5]

    def test_a_saved_state_has_the_momentum(self):
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, weight_decay=0.01)
        HandedOver(optimizer)
        saved = optimizer.state_dict()["param_groups"][0]
        assert (saved["momentum"], saved["weight_decay"]) == (0.9, 0.01)
        assert optimizer.param_groups[0]["momentum"] == 0


def disagree() -> str:
    ddp = wrap(mlp())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9 if dist.get_rank() else 0.8)
    with pytest.raises(ValueError, match="another configuration") as error:
        headway.attach(ddp, fixed(), optimizer=optimizer)
    assert optimizer.param_groups[0]["momentum"] > 0
    return str(error.value)


@pytest.mark.pool
def test_ranks_with_different_momenta_are_told(pool):
    assert (
        pool.run(disagree, num_ranks=2)
        == ["ranks [1] have another configuration than rank 0: give the same to all"] * 2
    )


def load_without_optimizer() -> str:
    ddp = wrap(mlp())
    optimizer = torch.optim.SGD(ddp.parameters(), **SGD)
    handle = headway.attach(ddp, fixed(exchange="allgather_topk"), optimizer=optimizer)
    step_once(ddp, optimizer, 0)
    state = handle.state_dict()
    handle.close()
    ddp = wrap(mlp())
    handle = headway.attach(ddp, fixed(exchange="allgather_topk"))
    with pytest.raises(ValueError, match="optimizer=") as error:
        handle.load_state_dict(state)
    handle.close()
    return str(error.value)


@pytest.mark.pool
def test_a_state_with_momentum_needs_the_optimizer(pool):
    assert all("momentum of an optimizer" in text for text in pool.run(load_without_optimizer, num_ranks=2))
