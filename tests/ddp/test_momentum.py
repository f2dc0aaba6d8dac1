"""Momentum that the optimizer has handed over: sent whole it is SGD's, compressed it is that of the equations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import headway
from headway.ddp.momentum import HandedOver, check_free, why_not
from headway.kernels import select_topk
from tests.ddp.training import EXCHANGES, Interrupted, fixed, interrupt, loss_of, mlp, parameters_of, step_once, wrap

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
    """All-gather top-k with momentum correction, by its equations, with a model of its own."""

    def __init__(self, options: dict, percent: int) -> None:
        self.model, self.options, self.percent = mlp(), options, percent
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
        indices = select_topk(self.v, -(-self.v.numel() * self.percent // 100)).long()
        sent = torch.zeros_like(self.v).index_copy(0, indices, self.v[indices])
        self.v[indices] = 0
        self.u[indices] *= min(1.0, (indices.numel() / self.v.numel() / 0.03) ** 0.5)
        dist.all_reduce(sent)
        update = torch.split(sent * (self.options["lr"] / dist.get_world_size()), self.numels)
        with torch.no_grad():
            for parameter, part in zip(self.model.parameters(), update, strict=True):
                parameter -= part.view_as(parameter)


def follow(config: headway.Fixed, options: dict) -> list[tuple[Tensor, Tensor]]:
    """Train, and do the same by the equations; return the parameters of both after each step."""
    ddp, equations = wrap(mlp()), Equations(options, round(100 * config.ratio))
    optimizer = torch.optim.SGD(ddp.parameters(), **options)
    seen = []
    with headway.attach(ddp, config, optimizer=optimizer):
        for step in range(NUM_STEPS):
            step_once(ddp, optimizer, step)
            equations.step(step)
            seen.append((parameters_of(ddp).clone(), parameters_of(equations.model).clone()))
    return seen


@pytest.mark.pool
@pytest.mark.parametrize(
    ("options", "ratio"), [({}, 0.05), ({}, 0.01), ({"nesterov": True}, 0.01), ({"weight_decay": 0.01}, 0.05)], ids=str
)
def test_compressed_steps_follow_the_equations(pool, options, ratio):
    config = fixed(exchange="allgather_topk", ratio=ratio, fusion="step")
    for seen in pool.run(follow, config, {**SGD, **options}, num_ranks=3):
        for ours, theirs in seen:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def train_with_a_stop(options: dict, at: int) -> Interrupted:
    def make() -> tuple[Any, Any, Any]:
        ddp = wrap(mlp())
        optimizer = torch.optim.SGD(ddp.parameters(), **SGD, weight_decay=0.01)
        return ddp, headway.attach(ddp, fixed(**options), optimizer=optimizer), optimizer

    return interrupt(make, at)


@pytest.mark.pool
@pytest.mark.parametrize("fusion", ["bucket", "step"])
@pytest.mark.parametrize("name", EXCHANGES)
def test_a_resumed_run_is_equal_to_the_bit(pool, name, fusion):
    ranks = pool.run(train_with_a_stop, {"exchange": name, "ratio": 0.01, "fusion": fusion}, 7, num_ranks=2)
    for rank in ranks:
        assert rank.resumed == rank.straight == ranks[0].straight
        assert rank.saved["optimizer"]["param_groups"][0]["momentum"] == SGD["momentum"]  # loadable without the hook


class SpoiledBackward(torch.autograd.Function):
    """Passes its input on, and in the backward pass Inf instead of the gradient."""

    @staticmethod
    def forward(_context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:
        return torch.full_like(gradient, torch.inf)


class Spoilable(nn.Module):
    """Layers of which the first can get Inf as its gradient, and of which one is used only in even steps."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(20, 64), nn.Linear(64, 5)
        self.sometimes = nn.Linear(64, 5)
        self.step, self.is_spoiled = 0, False

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        hidden = SpoiledBackward.apply(hidden) if self.is_spoiled else hidden
        logits = self.last(hidden.relu())
        return logits + self.sometimes(hidden.relu().detach()) if self.step % 2 == 0 else logits


def overflow(options: dict) -> dict:
    """Train; at step 5 the first layer of rank 1 has Inf, in the last bucket. Return what is kept before and after."""
    model = Spoilable()
    ddp = wrap(model, find_unused_parameters=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(ddp.parameters(), **SGD)
    handle = headway.attach(ddp, fixed(**options), optimizer=optimizer, scaler=scaler)
    seen = {}
    for step in range(7):
        optimizer.zero_grad()
        if step in (5, 6):
            seen[step] = handle.state_dict()
        model.step, model.is_spoiled = step, (dist.get_rank(), step) == (1, 5)
        scaler.scale(loss_of(ddp, step)).backward()
        scaler.step(optimizer)
        scaler.update(1024.0)
    gains = [record.gain for record in handle.records if record.step == 5]
    handle.close()
    return {name: (seen[5][name], seen[6][name]) for name in ("residual", "velocity")} | {"gains": gains}


@pytest.mark.pool
@pytest.mark.parametrize("fusion", ["bucket", "step"])
@pytest.mark.parametrize("exchange", ["dense", "allgather_topk", "star_topk", "union_topk", "quantized"])
def test_an_overflow_leaves_velocity_and_residual_as_they_were(pool, exchange, fusion):
    """Also those of buckets that were finite, and of a parameter that the step did not use."""
    for kept in pool.run(overflow, {"exchange": exchange, "ratio": 0.01, "fusion": fusion}, num_ranks=2):
        before, after = kept["velocity"]
        assert before.any()
        assert torch.equal(before, after)
        before, after = kept["residual"]
        assert exchange == "dense" if before is None else torch.equal(before, after)
        if exchange != "dense" and fusion == "bucket":
            assert not math.isnan(kept["gains"][0])  # it had been exchanged when another one was rejected
            assert any(map(math.isnan, kept["gains"]))


def train_scaled(scales: list[float], exchange: str) -> Tensor:
    """Train with a loss scaler whose scale changes by powers of two; return the parameters."""
    ddp = wrap(mlp())
    scaler = torch.amp.GradScaler("cpu", init_scale=scales[0])
    optimizer = torch.optim.SGD(ddp.parameters(), **SGD, weight_decay=0.01)
    config = fixed(exchange=exchange, ratio=0.05, fusion="step")
    with headway.attach(ddp, config, optimizer=optimizer, scaler=scaler):
        for step, next_scale in enumerate([*scales[1:], 1.0]):
            optimizer.zero_grad()
            scaler.scale(loss_of(ddp, step)).backward()
            scaler.step(optimizer)
            scaler.update(next_scale)
    return parameters_of(ddp)


@pytest.mark.pool
@pytest.mark.parametrize("exchange", ["dense", "allgather_topk"])
def test_velocities_and_decay_follow_the_scale_of_the_loss(pool, exchange):
    constant, changing = [1024.0] * 8, [1024.0, 512.0, 512.0, 4096.0, 1.0, 1024.0, 2048.0, 1024.0]
    expected = pool.run(train_scaled, constant, exchange, num_ranks=2)
    assert all(map(torch.equal, pool.run(train_scaled, changing, exchange, num_ranks=2), expected))


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
    assert why_not(torch.optim.SGD([one], lr=1.0, momentum=0.9), []) is None  # the model is not known
    assert why_not(torch.optim.SGD([one], lr=1.0), [one]) == "it has none"
    assert "different momenta" in why_not(torch.optim.SGD(groups, lr=1.0), [one, two])
    assert "not those" in why_not(torch.optim.SGD([one], lr=1.0, momentum=0.9), [one, two])
    assert "not those" in why_not(torch.optim.SGD([one, two], lr=1.0, momentum=0.9), [one])
    double = nn.Parameter(torch.ones(2, dtype=torch.float64))
    assert "double" in why_not(torch.optim.SGD([double], lr=1.0, momentum=0.9), [double])
    assert "dampening" in why_not(torch.optim.SGD([one], lr=1.0, momentum=0.9, dampening=0.1), [one])
    assert "Adam has no momentum" in why_not(torch.optim.Adam([one]), [one])


def started(optimizer: torch.optim.Optimizer, **options: Any) -> HandedOver:
    handed_over = HandedOver(optimizer, **options)
    handed_over.start()
    return handed_over


class TestHandedOver:
    def test_what_a_schedule_sets_is_taken_over_and_given_back(self):
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)
        handed_over = started(optimizer)
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

    def test_the_optimizer_applies_none_even_if_a_schedule_sets_it_just_before(self):
        weight = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.9)
        started(optimizer)
        for _ in range(3):
            weight.grad = torch.ones(1)
            optimizer.param_groups[0]["momentum"] = 0.9
            optimizer.step()
        assert weight.item() == -3.0

    def test_decay_is_that_of_each_group_and_follows_the_loss_scale(self):
        one, two = nn.Parameter(torch.ones(2)), nn.Parameter(torch.full((3,), 2.0))
        groups = [{"params": [one], "weight_decay": 0.5}, {"params": [two]}]
        handed_over = started(torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.25))
        gradient = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0])
        handed_over.add_decay(gradient, [one, two], scale=4.0, skips_zeros=False)
        assert gradient.tolist() == [3.0, 3.0, 3.0, 3.0, 3.0]
        gradient = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0])
        handed_over.add_decay(gradient, [one, two], scale=1.0, skips_zeros=True)
        assert gradient.tolist() == [0.0, 0.0, 1.5, 1.5, 1.5]

    def test_decay_of_a_channels_last_parameter_is_in_the_order_of_its_memory(self):
        weight = nn.Parameter(torch.arange(24.0).view(2, 3, 2, 2).to(memory_format=torch.channels_last))
        handed_over = started(torch.optim.SGD([weight], lr=0.1, momentum=0.9, weight_decay=1.0))
        gradient = torch.zeros(24)
        handed_over.add_decay(gradient, [weight], scale=1.0, skips_zeros=False)
        assert torch.equal(gradient, weight.detach().permute(0, 2, 3, 1).reshape(-1))  # as DDP lays out its bucket

    def test_a_saved_state_has_the_momentum_and_old_buffers_are_dropped(self):
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, weight_decay=0.01)
        weight.grad = torch.ones(2)
        optimizer.step()
        started(optimizer)
        state = optimizer.state_dict()
        assert (state["param_groups"][0]["momentum"], state["param_groups"][0]["weight_decay"]) == (0.9, 0.01)
        assert not state["state"].get(0)
        assert optimizer.param_groups[0]["momentum"] == 0

    def test_dropping_momentum_from_before_is_said(self, caplog):
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        weight.grad = torch.ones(2)
        optimizer.step()
        started(optimizer)
        assert "starts at zero" in caplog.text

    def test_a_group_that_is_added_later_is_taken_over_too(self):
        one, two = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([one], lr=0.1, momentum=0.9)
        handed_over = started(optimizer)
        optimizer.add_param_group({"params": [two], "weight_decay": 0.1, "momentum": 0.9})
        handed_over.take_over()
        assert [group["momentum"] for group in optimizer.param_groups] == [0, 0]
        optimizer.state_dict()
        handed_over.give_back()
        assert [group["weight_decay"] for group in optimizer.param_groups] == [0, 0.1]

    def test_two_backward_passes_without_a_step_are_worth_a_warning_once(self, caplog):
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        handed_over = started(optimizer)
        for _ in range(2):
            handed_over.begin_step()
            optimizer.step()
        assert not caplog.records
        for _ in range(4):
            handed_over.begin_step()
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "no_sync()" in caplog.text

    def test_an_optimizer_has_one_handle_at_a_time(self):
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
        handed_over = started(optimizer)
        with pytest.raises(ValueError, match="close\\(\\) it first"):
            check_free(optimizer)
        handed_over.give_back()
        check_free(optimizer)


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
