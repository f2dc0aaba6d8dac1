"""Wrapping: what is refused, what ranks must have in common, and the optimizer that comes out of it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from headway import Adaptive, Fixed, PeerLost, local
from headway.local.settings import LocalSettings
from tests.local.loop import DENSE, flat, network, train, wrapped
from tests.ranks import refusal, same_on_all

BAD = {
    "steps is 0": {"steps": 0},
    "steps is 2.5": {"steps": 2.5},
    "steps is 'often'": {"steps": "often"},
    "config is a str": {"config": "dense"},
    "overlap is -1": {"overlap": -1},
    "overlap is 9": {"steps": 8, "overlap": 9},
    "outer is 'sgd'": {"outer": "sgd"},
    "residual_decay is 1.5": {"residual_decay": 1.5},
    "residual_decay is 0": {"residual_decay": 0},
    "network is followed": {"steps": 4, "config": DENSE},
    "pushes twice": {"outer": local.Nesterov(), "config": Fixed(exchange="star_topk")},
    "outer momentum": {"outer": local.Nesterov(), "config": Adaptive()},
}


@pytest.mark.parametrize("reason", BAD)
def test_settings_that_make_no_sense_are_refused(reason):
    with pytest.raises(ValueError, match=reason):
        LocalSettings(**BAD[reason])


@pytest.mark.parametrize(("options", "reason"), [({"lr": 0.0}, "lr is"), ({"momentum": 1.0}, "momentum is")])
def test_an_outer_optimizer_checks_its_numbers(options, reason):
    with pytest.raises(ValueError, match=reason):
        local.Nesterov(**options)


def test_without_a_process_group_it_says_so():
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="init_process_group"):
        local.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.pool
def test_what_cannot_be_wrapped_is_refused(pool):
    for refused in pool.run(refusals, num_ranks=2):
        assert "takes the place of DistributedDataParallel" in refused["ddp"]
        assert "wrapped already" in refused["twice"]
        assert "in this order" in refused["order"]
        assert "not the model's" in refused["foreign"]
        assert "have another configuration" in refused["steps"]
        assert "have another configuration" in refused["model"]
        assert "cannot be added" in refused["group"]
        assert "inside averaged" in refused["inside"]
        assert "inside averaged" in refused["saved inside"]
        assert "closed" in refused["closed"]


def refusals() -> dict[str, str]:
    model, rank = network(), dist.get_rank()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    ddp = nn.parallel.DistributedDataParallel(network())
    optimizer = wrapped(model)
    found = {
        "ddp": refusal(lambda: local.wrap(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1))),
        "twice": refusal(lambda: local.wrap(model, optimizer)),
        "order": refusal(lambda: local.wrap(sgd, model)),
        "foreign": refusal(lambda: local.wrap(network(), sgd)),
        "steps": refusal(lambda: wrapped(network(), 2 + rank)),
        "model": refusal(lambda: wrapped(nn.Linear(2, 2 + rank))),
        "group": refusal(lambda: optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})),
    }
    with optimizer.averaged():
        found["inside"] = refusal(optimizer.step)
        found["saved inside"] = refusal(optimizer.state_dict)
    optimizer.close()
    optimizer.close()
    return {**found, "closed": refusal(optimizer.step)}


@pytest.mark.pool
def test_the_common_model_can_be_looked_at_without_disturbing_training(pool):
    assert all(pool.run(look, num_ranks=2))


def look() -> bool:
    model = network(norm=True)
    with wrapped(model) as optimizer:
        train(model, optimizer, range(4))
        own, mean = flat(model), model[1].running_mean.clone()
        with optimizer.averaged():
            is_common = torch.equal(flat(model), optimizer._rounds.state.common) and same_on_all(flat(model))
            is_common &= same_on_all(model[1].running_mean)
        is_back = torch.equal(flat(model), own) and not same_on_all(own)
        is_back &= torch.equal(model[1].running_mean, mean) and not same_on_all(mean)
        totals = optimizer.statistics()
        counts = totals.step == 4 and totals.dense_bytes == 4 * sum(record.dense_bytes for record in optimizer.records)
        optimizer.average_()
        return is_common and is_back and counts and same_on_all(flat(model)) and same_on_all(model[1].running_mean)


@pytest.mark.pool
def test_a_framework_may_step_the_inner_optimizer(pool):
    assert all(pool.run(step_outside, num_ranks=2))


def step_outside() -> bool:
    model, twin = network(), network()
    optimizer, other = wrapped(model, overlap=1), wrapped(twin, overlap=1)
    train(model, optimizer, range(7))
    train(twin, other.inner, range(7), after=lambda _: other.after_step())
    is_same = torch.equal(flat(model), flat(twin)) and other.num_steps == 7 and len(other.records) == 2
    other.inner.load_state_dict(other.inner.state_dict())
    other.after_step()
    is_same &= other.param_groups is other.inner.param_groups
    optimizer.close()
    other.close()
    return is_same and "closed" in refusal(other.after_step)


@pytest.mark.pool
def test_a_fixed_exchange_has_its_delay_chosen_live(pool):
    assert all(pool.run(choose_delay, num_ranks=2))


def choose_delay() -> bool:
    model = network()
    config = Fixed(exchange="allgather_topk", ratio=0.1, timeout_s=20.0)
    with wrapped(model, 4, config=config, overlap=True) as optimizer:
        train(model, optimizer, range(20))
        has_chosen = any(decision.cause == "start" for decision in optimizer.history)
        return has_chosen and optimizer.plan.local_steps == 4 and optimizer.plan.ratio == 0.1


@pytest.mark.pool
def test_a_single_rank_trains_as_without_it(pool):
    assert pool.run(alone, num_ranks=1) == [True]


def alone() -> bool:
    model, twin = network(), network()
    optimizer = local.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    sgd = torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9)
    train(model, optimizer, range(5))
    train(twin, sgd, range(5))
    optimizer.average_()
    optimizer.close()
    return torch.equal(flat(model), flat(twin))


@pytest.mark.pool
def test_steps_are_chosen_live(pool):
    found = pool.run(choose, num_ranks=2)
    assert all(is_same for _, is_same in found)
    assert found[0][0] == found[1][0]


def choose() -> tuple[list[tuple[int, int]], bool]:
    model, seen = network(), []
    with wrapped(model, "auto", config=Adaptive(timeout_s=20.0), overlap=True) as optimizer:
        # The plan may change while an exchange is under way; the pace of a round is that of its beginning.
        train(model, optimizer, range(30), after=lambda _: seen.append(tuple(optimizer._rounds.state.pace)))
        optimizer.average_()
        return seen, same_on_all(flat(model)) and len(optimizer.history) > 0


@pytest.mark.pool
def test_presets_do_what_their_papers_say(pool):
    assert all(pool.run(presets, num_ranks=2))


def presets() -> bool:
    """DiLoCo: v = m v + D, w = w - lr (D + m v). SparseLoCo: the residual decays."""
    model = network()
    start = None
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)
    with local.DiLoCo(model, sgd, steps=2, config=DENSE) as optimizer:
        start = flat(model)
        train(model, optimizer, range(1))
        before = flat(model)
        train(model, optimizer, range(1, 2))
        rounds = optimizer._rounds
        difference = rounds.state.velocity  # after the first round v = D
        is_nesterov = torch.allclose(flat(model), start - 0.7 * (1 + 0.9) * difference, atol=1e-6)
        has_moved = not torch.equal(before, start)
    model = network()
    config = Fixed(exchange="allgather_topk", ratio=0.05, link=DENSE.link, timeout_s=20.0)
    with local.SparseLoCo(model, torch.optim.SGD(model.parameters(), lr=0.0), steps=1, config=config) as optimizer:
        for parameter in model.parameters():
            parameter.data.add_(torch.linspace(0, 1, parameter.numel()).view_as(parameter) * 0.01)
        train(model, optimizer, range(1))
        kept = optimizer._averaging.averager.memories.residual.clone()
        train(model, optimizer, range(1, 2))
        sent = (kept != 0) & (optimizer._averaging.averager.memories.residual == 0)
        still = optimizer._averaging.averager.memories.residual
        decays = torch.allclose(still[~sent], 0.95 * kept[~sent]) and bool(kept.any()) and optimizer.plan.ratio == 0.05
    return is_nesterov and has_moved and decays


@pytest.mark.pool
@pytest.mark.parametrize("overlap", [0, 2])
def test_when_a_rank_fails_the_others_learn_which(pool, overlap):
    assert pool.run(fail, overlap, num_ranks=3) == ["PeerLost 1", "ZeroDivisionError", "PeerLost 1"]


def fail(overlap: int) -> str:
    model = network()
    try:
        with wrapped(model, 2, overlap=overlap) as optimizer:
            train(model, optimizer, range(20), after=lambda step: 1 // (5 - step) if dist.get_rank() == 1 else None)
    except PeerLost as error:
        return f"PeerLost {','.join(map(str, error.ranks))}"
    except ZeroDivisionError:
        return "ZeroDivisionError"
    return "nothing was noticed"
