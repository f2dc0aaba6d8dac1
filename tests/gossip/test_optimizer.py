"""The optimizer in the loops people write: schedulers, scalers, batch norm, evaluation."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from headway import gossip
from headway.compress import StochasticQuantizer
from headway.gossip import Together
from tests.gossip.loop import network, refusal, same_on_all, train, wrapped
from tests.gossip.problem import Quadratic, flat

pytestmark = pytest.mark.pool
ALGORITHMS = ("dpsgd", "naive", "dcd", "ecd", "choco")
RATE = 1 / 16


@pytest.mark.parametrize(("algorithm", "local_steps"), [*((name, 1) for name in ALGORITHMS), ("dcd", 3), ("choco", 2)])
def test_wrap_and_together_take_the_same_steps_to_the_bit(pool, algorithm, local_steps):
    assert all(pool.run(beside_together, algorithm, local_steps, num_ranks=4))


def beside_together(algorithm: str, local_steps: int) -> bool:
    """With a learning rate that is a power of two, so that the update itself is not rounded."""
    model = Quadratic(dist.get_rank())
    optimizer = gossip.wrap(
        model,
        torch.optim.SGD(model.parameters(), lr=RATE),
        algorithm=algorithm,
        local_steps=local_steps,
        memory="lean",
        seed=3,
        timeout_s=20,
    )
    ranks = Together(flat(model), dist.get_world_size(), algorithm, local_steps=local_steps, seed=3)
    for _ in range(20):
        optimizer.zero_grad()
        model().backward()
        update = -RATE * torch.cat([parameter.grad for parameter in model.parameters()])
        updates = [torch.empty_like(update) for _ in range(dist.get_world_size())]
        dist.all_gather(updates, update)
        optimizer.step()
        ranks.step(torch.stack(updates))
    same = torch.equal(flat(model), ranks.models[dist.get_rank()])
    optimizer.close()
    return same


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
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, own)
    mean = torch.stack(everyone).mean(dim=0)
    near = float((torch.stack(everyone) - mean).square().sum(dim=1).mean().sqrt())
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
                assert all("leave it first" in said for said in refused)
                assert saved is None or torch.equal(saved, flat(model))
                assert not same_on_all(flat(model))
        paths.append(copy.deepcopy(model.state_dict()))
        optimizer.close()
    return all(torch.equal(paths[0][name], paths[1][name]) for name in paths[0])


def test_what_is_frozen_stays_as_it_is(pool):
    for moved, refused in pool.run(freeze, num_ranks=3):
        assert moved == 0
        assert "wrap anew" in refused


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


def test_buffers_that_are_not_finite_stay_as_they_are(pool):
    assert all(pool.run(mix_a_mask, num_ranks=2))


def mix_a_mask() -> bool:
    model = network()
    mask = torch.triu(torch.full((4, 4), float("-inf")), diagonal=1)
    model.register_buffer("mask", mask.clone())
    model.register_buffer("precise", torch.ones(2, dtype=torch.float64))
    model.register_buffer("columns", torch.ones(3, 2).t())
    model.register_buffer("number", torch.tensor(True))
    optimizer = wrapped(model, buffer_interval=2)
    train(model, optimizer, range(7))
    optimizer.average_()
    same = torch.equal(model.mask, mask)
    optimizer.close()
    return same


def test_buffers_are_mixed_at_their_interval(pool):
    mixed, alone = (pool.run(spread_of_buffers, interval, num_ranks=4)[0] for interval in (5, 0))
    assert mixed[0] == pytest.approx(alone[0], rel=1e-4)  # the mean over ranks is what it would be
    assert mixed[1] < 0.5 * alone[1]


def spread_of_buffers(interval: int) -> tuple[float, float]:
    """Models that do not learn, data that differ between ranks: only mixing brings their statistics together."""
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2))
    inner = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer = gossip.wrap(model, inner, buffer_interval=interval, timeout_s=20)
    for step in range(21):
        inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(step)) + dist.get_rank()
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
    optimizer.state_dict()
    means = [torch.empty(6) for _ in range(dist.get_world_size())]
    dist.all_gather(means, model[0].running_mean)
    optimizer.close()
    together = torch.stack(means)
    return float(together.mean()), float(together.std(dim=0).mean())


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


def test_statistics_count_bytes_and_steps(pool):
    for rank, statistics in enumerate(pool.run(count, num_ranks=3)):
        numel, per_block = 1026, 4
        message = 8 + (numel + per_block + (-(numel + per_block)) % 4)
        assert statistics.wire_bytes == 2 * 6 * message, rank
        assert statistics.step == 6
        assert statistics.dense_bytes == 6 * round(2 * 2 / 3 * 4 * numel)
        assert 0.6 < statistics.saved < 1
        assert "step 6:" in str(statistics)
        assert statistics.compress_s > 0


def count() -> gossip.GossipStatistics:
    model = nn.Sequential(nn.Linear(6, 114), nn.Linear(114, 2, bias=False))
    optimizer = wrapped(model, algorithm="dcd", buffer_interval=0)
    train(model, optimizer, range(6))
    statistics = optimizer.statistics()
    optimizer.close()
    return statistics


def test_saturation_is_told_once(pool):
    (event,) = pool.run(saturate, num_ranks=2)[0]
    assert event.kind == "saturated"
    assert "exceed the quantiser's range" in str(event)


def saturate() -> tuple:
    model = network()
    compressor = StochasticQuantizer(bits=4, step=1e-4)
    optimizer = wrapped(model, algorithm="ecd", compressor=compressor)
    train(model, optimizer, range(5))
    assert optimizer.statistics().num_saturated > 100
    events = optimizer.events
    optimizer.close()
    return events
