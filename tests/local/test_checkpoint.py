"""A run that is resumed goes on to the bit, also in the middle of a round; and only from a state that fits."""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
import torch.distributed as dist

from headway import Fixed, Link
from headway.local import Nesterov
from tests.local.loop import DENSE, flat, network, train, wrapped
from tests.ranks import refusal

pytestmark = pytest.mark.pool
TOP_K = Fixed(
    exchange="allgather_topk", ratio=0.1, values="int8", link=Link(latency_s=1e-4, bandwidth_bps=1e9), timeout_s=20.0
)


@pytest.mark.parametrize(
    ("num_before", "overlap", "is_compressed"), [(6, 0, True), (7, 0, True), (7, 2, True), (8, 2, True), (7, 3, False)]
)
def test_a_resumed_run_goes_on_to_the_bit(pool, num_before, overlap, is_compressed):
    assert all(pool.run(resume, num_before, overlap, is_compressed, num_ranks=3))


def resume(num_before: int, overlap: int, is_compressed: bool) -> bool:
    options = {"config": TOP_K} if is_compressed else {"config": DENSE, "outer": Nesterov()}
    model = network(norm=True)
    optimizer = wrapped(model, 3, overlap=overlap, **options)
    train(model, optimizer, range(num_before))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    train(model, optimizer, range(num_before, 16))
    straight = copy.deepcopy(model.state_dict())
    optimizer.close()
    file.seek(0)
    state = torch.load(file, weights_only=True)
    other = network(norm=True)
    again = wrapped(other, 3, overlap=overlap, **options)
    other.load_state_dict(state["model"])
    again.load_state_dict(state["optimizer"])
    train(other, again, range(num_before, 16))
    is_same = all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in straight.items())
    again.close()
    totals = again.statistics()
    per_exchange = (16 - num_before) / sum(each.num_exchanges for each in totals.exchanges.values())
    return is_same and again.num_steps == totals.step == 16 and totals.steps_per_exchange == per_exchange


def test_a_state_has_the_whole_model_of_its_rank_and_is_readable_to_the_end(pool):
    assert all(pool.run(load_without_model, num_ranks=2))


def load_without_model() -> bool:
    model = network(norm=True)
    optimizer = wrapped(model)
    train(model, optimizer, range(4))
    optimizer.close()
    state = optimizer.state_dict()
    other = network(norm=True)
    with wrapped(other) as again:
        again.load_state_dict(state)
    floats = {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
    return len(floats) == 8 and all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in floats.items())


def test_states_that_do_not_fit_are_refused_on_all_ranks(pool):
    for refused in pool.run(bad_states, num_ranks=2):
        assert "no state of a local optimizer" in refused["nothing"]
        assert "another model" in refused["another model"]
        assert "damaged" in refused["damaged"]
        assert "rank 1" in refused["one rank"] or "no state" in refused["one rank"]
        assert "another step" in refused["another step"]
        assert "buffers" in refused["buffers"]
        assert "outer optimizer" in refused["outer"]
        assert "groups" in refused["groups"]
        assert refused["untouched"]
        assert ["goes on from the model as it is" in text for text in refused["warned"]] == [True]


def bad_states() -> dict[str, object]:
    model = network()
    optimizer = wrapped(model)
    train(model, optimizer, range(4))
    state, before = optimizer.state_dict(), flat(model)
    small = copy.deepcopy(state)
    small["local"]["common"] = small["local"]["common"][:5]
    damaged = copy.deepcopy(state)
    del damaged["local"]["pace"]
    stale = copy.deepcopy(state)
    stale["local"]["num_steps"] -= dist.get_rank()
    other_buffers = copy.deepcopy(state)
    other_buffers["local"]["buffers"]["copies"] = {"mean": torch.zeros(2)}
    other_outer = copy.deepcopy(state)
    other_outer["local"]["velocity"] = torch.zeros_like(state["local"]["common"])
    other_groups = copy.deepcopy(state)
    other_groups["optimizer"]["param_groups"] *= 2
    cases = {
        "buffers": other_buffers,
        "outer": other_outer,
        "groups": other_groups,
        "nothing": {},
        "another model": small,
        "damaged": damaged,
        "one rank": state if dist.get_rank() == 0 else {},
        "another step": stale,
    }
    found = {name: refusal(lambda case=case: optimizer.load_state_dict(case)) for name, case in cases.items()}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.load_state_dict(cases["one rank"], strict=False)
    untouched = torch.equal(flat(model), before) and optimizer.num_steps == 4
    optimizer.close()
    return {**found, "untouched": untouched, "warned": [str(each.message) for each in caught]}
