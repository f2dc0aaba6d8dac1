"""The optimizer in ordinary training loops: schedulers, scalers, batch norm, evaluation."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from headway import gossip
from tests.gossip.loop import network, train, wrapped
from tests.gossip.problem import flat
from tests.ranks import refusal, same_on_all

pytestmark = pytest.mark.pool


def test_models_start_as_that_of_rank_0_and_can_be_averaged(pool):
    for start_same, apart, distance, near, same, buffers_same, restarted in pool.run(average, num_ranks=4):
        assert start_same
        assert apart
        assert distance > 0
        assert near == pytest.approx(distance, rel=1e-4)
        assert same
        assert buffers_same
        assert restarted == 0


def average() -> tuple:
    model = network()
    optimizer = wrapped(model)
    start_same = same_on_all(flat(model)) and same_on_all(model[1].running_mean)
    train(model, optimizer, range(15))
    apart = not same_on_all(flat(model))
    distance = optimizer.consensus_distance()
    own = flat(model)
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, own)
    mean = torch.stack(gathered).mean(dim=0)
    near = float((torch.stack(gathered) - mean).square().sum(dim=1).mean().sqrt())
    optimizer.average_()
    torch.testing.assert_close(flat(model), mean, rtol=1e-4, atol=1e-6)
    same, buffers_same = same_on_all(flat(model)), same_on_all(model[1].running_var)
    restarted = optimizer.consensus_distance()
    train(model, optimizer, range(15, 20))
    optimizer.close()
    return start_same, apart, distance, near, same, buffers_same, restarted


def test_averaged_lends_the_average_and_leaves_no_trace(pool):
    assert all(pool.run(lend, num_ranks=3))


def lend() -> bool:
    paths = []
    for looks in (False, True):
        model = network()
        optimizer = wrapped(model, algorithm="dcd", buffer_interval=4, local_steps=2)
        for step in range(20):
            train(model, optimizer, range(step, step + 1))
            if looks and step in (7, 8, 12, 15):  # also when buffers have come, and between exchanges
                optimizer.consensus_distance()
                with optimizer.averaged():
                    assert same_on_all(flat(model))
                    assert same_on_all(model[1].running_mean)
                    saved = optimizer.state_dict()["gossip"]["moved"]
                    refused = [refusal(optimizer.step), refusal(partial(optimizer.load_state_dict, {}))]
                assert all("leave it first" in message for message in refused)
                assert saved is None or torch.equal(saved, flat(model))
                assert not same_on_all(flat(model))
        paths.append(copy.deepcopy(model.state_dict()))
        optimizer.close()
    return all(torch.equal(paths[0][name], paths[1][name]) for name in paths[0])


def test_what_is_frozen_stays_as_it_is(pool):
    for moved, refused in pool.run(freeze, num_ranks=3):
        assert moved == 0
        assert "wrap the optimizer again" in refused


def freeze() -> tuple[float, str]:
    model = network()
    model[0].requires_grad_(False)
    optimizer = wrapped(model)
    before = model[0].weight.clone()
    train(model, optimizer, range(30))
    moved = float((model[0].weight - before).abs().max())
    model[0].requires_grad_(True)
    refused = refusal(optimizer.step)
    optimizer.close()
    return moved, refused


def test_a_scaler_that_finds_an_overflow_skips_the_local_update_only(pool):
    ranks = pool.run(overflow, num_ranks=3)
    for _scale, stepped, finite, moments in ranks:
        assert stepped == 12
        assert finite
        assert moments
    assert ranks[1][0] < ranks[0][0]  # only rank 1 has seen an overflow


def overflow() -> tuple:
    model = network()
    optimizer = wrapped(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    train(model, optimizer, range(4), scaler)
    if dist.get_rank() == 1:
        optimizer.zero_grad()
        (scaler.scale(model(torch.randn(8, 6)).sum()) * float("inf")).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        train(model, optimizer, range(4, 5), scaler)
    train(model, optimizer, range(5, 12), scaler)
    finite = all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    moments = all(bool(state["momentum_buffer"].isfinite().all()) for state in optimizer.state.values())
    result = scaler.get_scale(), optimizer.statistics().step, finite, moments
    optimizer.close()
    return result


def test_a_scaler_changes_nothing_where_nothing_overflows(pool):
    for plain, scaled in pool.run(scaled_and_plain, num_ranks=2):
        torch.testing.assert_close(scaled, plain, rtol=1e-4, atol=1e-6)


def scaled_and_plain() -> list[Tensor]:
    found = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=1024.0)):
        model = network()
        optimizer = wrapped(model, algorithm="dpsgd")
        train(model, optimizer, range(10), scaler)
        found.append(flat(model))
        optimizer.close()
    return found


def test_schedulers_closures_and_groups_work_as_on_any_optimizer(pool):
    for rates, loss, lr_of_inner, refused in pool.run(as_an_optimizer, num_ranks=2):
        assert rates == pytest.approx([0.05, 0.025, 0.0125])
        assert isinstance(loss, float)
        assert lr_of_inner == pytest.approx(0.00625)
        assert "add them first, then wrap" in refused


def as_an_optimizer() -> tuple:
    model = network()
    optimizer = wrapped(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    rates = []
    for step in range(3):
        rates.append(optimizer.param_groups[0]["lr"])
        train(model, optimizer, range(step, step + 1), scheduler=scheduler)

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 6)).square().mean()
        loss.backward()
        return loss.item()

    loss = optimizer.step(closure)
    try:
        optimizer.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})
        refused = ""
    except ValueError as error:
        refused = str(error)
    lr = optimizer.inner.param_groups[0]["lr"]
    optimizer.close()
    return rates, loss, lr, refused


@pytest.mark.parametrize(("dtype", "move"), [(torch.float16, 0.0025), (torch.bfloat16, 2**-8)])
def test_narrow_parameters_do_not_lose_what_rounding_takes(pool, dtype, move):
    """What the inner optimizer moves a parameter by, in its own type, adds up in float32."""
    for moved in pool.run(move_a_little, dtype, num_ranks=2):
        assert moved == pytest.approx(4 * move, rel=0.1)


def move_a_little(dtype: torch.dtype) -> float:
    model = nn.Linear(4, 4, bias=False).to(dtype)
    nn.init.ones_(model.weight)
    optimizer = gossip.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01), algorithm="dcd", timeout_s=20)
    for _ in range(4):
        model.weight.grad = torch.full_like(model.weight, 0.25)
        optimizer.step()
    x = optimizer.state_dict()["gossip"]["algorithm"]["x"]
    optimizer.close()
    return float(1 - x.mean())
