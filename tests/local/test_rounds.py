"""What ranks have after rounds: the common model, and what each has moved since."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.distributed as dist
from torch import nn

from headway import Fixed, Link
from headway.exchange import EXCHANGES
from tests.local.loop import expected, flat, network, train, wrapped
from tests.ranks import same_on_all

pytestmark = pytest.mark.pool
LINK = Link(latency_s=1e-4, bandwidth_bps=1e9)


@pytest.mark.parametrize(("local_steps", "delay"), [(1, 0), (1, 1), (4, 0), (4, 1), (4, 3), (4, 4)])
def test_dense_rounds_give_what_the_definition_says(pool, local_steps, delay):
    assert all(pool.run(follow, local_steps, delay, num_ranks=3))


def follow(local_steps: int, delay: int) -> bool:
    model = network()
    optimizer = wrapped(model, local_steps, overlap=delay)
    twin = copy.deepcopy(model)  # wrap has made it that of rank 0
    train(model, optimizer, range(11))
    common, own = expected(twin, dist.get_world_size(), 11, local_steps, delay)
    fits = torch.allclose(optimizer._rounds.state.common, common, atol=1e-6) and torch.allclose(
        flat(model), own, atol=1e-6
    )
    optimizer.close()
    return fits


def test_with_one_step_and_dense_differences_it_is_data_parallel_sgd(pool):
    assert all(pool.run(against_ddp, num_ranks=2))


def against_ddp() -> bool:
    model = network()
    optimizer = wrapped(model, 1)
    twin = copy.deepcopy(model)
    ddp = nn.parallel.DistributedDataParallel(twin)
    sgd = torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9)
    train(model, optimizer, range(10))
    train(ddp, sgd, range(10))
    optimizer.close()
    return torch.allclose(flat(model), flat(twin), atol=1e-5)


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("exchange", list(EXCHANGES))
def test_the_common_model_is_the_same_to_the_bit_after_every_round(pool, exchange, overlap):
    found = pool.run(common_models, exchange, overlap, num_ranks=3)
    assert found == [(True, True, True)] * 3


def common_models(exchange: str, overlap: int) -> tuple[bool, bool, bool]:
    model, seen = network(), []
    config = Fixed(exchange=exchange, ratio=0.1, link=LINK, timeout_s=20.0)
    optimizer = wrapped(model, 2, config=config, overlap=overlap)
    start = flat(model)
    train(model, optimizer, range(13), after=lambda _: seen.append(same_on_all(optimizer._rounds.state.common)))
    has_moved = not torch.equal(optimizer._rounds.state.common, start)
    optimizer.average_()
    ends_equal = same_on_all(flat(model))
    optimizer.close()
    return all(seen), has_moved, ends_equal


def test_what_is_not_sent_is_kept(pool):
    assert all(pool.run(conserve, num_ranks=3))


def conserve() -> bool:
    """Sum over ranks of what was moved = N times what the common model has moved + sum of residuals."""
    model = network()
    optimizer = wrapped(model, 2, config=Fixed(exchange="allgather_topk", ratio=0.05, link=LINK, timeout_s=20.0))
    start = flat(model).double()
    train(model, optimizer, range(2))
    rounds = optimizer._rounds
    kept = optimizer._averaging.averager.memories.residual.double()
    total = rounds.state.moved.double().clone()
    dist.all_reduce(total)
    dist.all_reduce(kept)
    arrived = (start - rounds.state.common.double()) * dist.get_world_size()
    optimizer.close()
    return torch.allclose(total, arrived + kept, atol=1e-6) and bool(kept.abs().sum() > 0)


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_model_that_is_not_finite_starts_again_from_the_common_one(pool, overlap):
    assert all(pool.run(overflow, overlap, num_ranks=3))


def overflow(overlap: int) -> bool:
    model = network(norm=True)
    optimizer = wrapped(model, 2, overlap=overlap)
    train(model, optimizer, range(5))  # the second average has been applied, and the third exchange is yet to begin
    common = optimizer._rounds.state.common.clone()
    if dist.get_rank() == 1:
        with torch.no_grad():
            model[0].weight.fill_(math.nan)
            model[1].running_mean.fill_(math.nan)
    train(model, optimizer, range(5, 6 + overlap))
    was_skipped = torch.equal(optimizer._rounds.state.common, common)
    is_finite = bool(flat(model).isfinite().all())
    will_send_all = torch.allclose(
        optimizer._rounds.state.base, common, atol=1e-6
    )  # what finite ranks have moved since
    train(model, optimizer, range(6 + overlap, 12))
    has_moved = not torch.equal(optimizer._rounds.state.common, common)
    is_sound = all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())
    if dist.get_rank() == 2:
        with torch.no_grad():
            model[0].weight.fill_(math.inf)
    optimizer.average_()
    ends_finite = bool(flat(model).isfinite().all()) and same_on_all(flat(model))
    optimizer.close()
    return was_skipped and is_finite and will_send_all and has_moved and is_sound and ends_finite


@pytest.mark.parametrize("overlap", [0, 1])
def test_buffers_are_averaged_with_every_round(pool, overlap):
    found = pool.run(buffers, overlap, num_ranks=2)
    assert all(found)


def buffers(overlap: int) -> bool:
    """With a delay, buffer = buffer + average - what it was when the exchange began."""
    model, seen = network(norm=True), []
    optimizer = wrapped(model, 2, overlap=overlap)
    alone = copy.deepcopy(model)
    train(model, optimizer, range(2 + overlap))
    sgd = torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9)
    train(alone, sgd, range(2 + overlap), after=lambda _: seen.append(alone[1].running_mean.clone()))
    average = seen[1].clone()
    dist.all_reduce(average)
    average /= dist.get_world_size()
    expected_mean = average + (seen[-1] - seen[1])
    optimizer.close()
    return torch.allclose(model[1].running_mean, expected_mean, atol=1e-6) and not torch.allclose(seen[1], average)


def test_sixteen_bit_parameters_keep_what_they_round_away_out_of_the_differences(pool):
    assert all(pool.run(half, num_ranks=2))


def half() -> bool:
    model = network().to(torch.bfloat16)
    optimizer = wrapped(model, 2)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    start = optimizer._rounds.state.common.clone()
    for _ in range(6):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    still = torch.equal(optimizer._rounds.state.common, start)
    optimizer._rounds.state.common.add_(1e-4)  # less than bfloat16 can tell apart
    before = optimizer._rounds.state.common.clone()
    for _ in range(4):
        optimizer.step()
    unmoved = torch.allclose(optimizer._rounds.state.common, before, atol=1e-7)
    optimizer.close()
    return still and unmoved
