"""A run resumed from a checkpoint is bitwise equal to one that was not interrupted."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import headway
from tests.ddp.training import EXCHANGES, Interrupted, bits, fixed, interrupt, mlp, parameters_of, step_once, wrap

pytestmark = pytest.mark.pool


def make(options: dict, model: torch.nn.Module | None = None) -> tuple[Any, Any, Any]:
    ddp = wrap(model or mlp())
    handle = headway.attach(ddp, fixed(**options))
    return ddp, handle, torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)


def train_with_a_stop(options: dict, at: int) -> Interrupted:
    return interrupt(lambda: make(options), at)


@pytest.mark.parametrize(
    ("name", "fusion"), [*((name, fusion) for name in EXCHANGES for fusion in ("bucket", "step")), ("var_topk", "auto")]
)
def test_a_resumed_run_is_equal_to_the_bit(pool, name, fusion):
    options = {"exchange": name, "ratio": 0.05, "fusion": fusion}
    ranks = pool.run(train_with_a_stop, options, 7, num_ranks=3)
    for rank in ranks:
        assert rank.resumed == rank.straight == ranks[0].straight
        assert rank.num_steps == 12


@pytest.mark.parametrize("fusion", ["bucket", "step"])
@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_so_is_one_that_was_stopped_early(pool, at, fusion):
    options = {"exchange": "star_topk", "ratio": 0.05, "fusion": fusion}
    for rank in pool.run(train_with_a_stop, options, at, num_ranks=2):
        assert rank.resumed == rank.straight


def one_odd_state() -> list[str]:
    ddp, handle, optimizer = make({"exchange": "allgather_topk", "ratio": 0.05})
    for step in range(4):
        step_once(ddp, optimizer, step)
    state = handle.state_dict()
    if state["rank"] == 1:
        state["num_ranks"] = 5
    said = []
    try:
        handle.load_state_dict(state)
    except ValueError as error:
        said.append(str(error))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        handle.load_state_dict(state, strict=False)
    said.append(str(caught[0].message))
    for step in range(4, 8):
        step_once(ddp, optimizer, step)
    handle.close()
    return [*said, bits(parameters_of(ddp))]


def test_a_state_that_does_not_fit_on_one_rank_is_refused_on_all(pool):
    first, second = pool.run(one_odd_state, num_ranks=2)
    assert first[0].startswith("the state of rank 1 does not fit; strict=False")
    assert second[0].startswith("the state is of 5 ranks, but there are 2")
    assert first[1] == "the state of rank 1 does not fit: residuals are dropped"
    assert first[2] == second[2]


def misfits() -> list[str]:
    options = {"exchange": "allgather_topk", "ratio": 0.05}
    ddp, handle, optimizer = make(options)
    for step in range(4):
        step_once(ddp, optimizer, step)
    state = handle.state_dict()
    said = []
    _, other, _ = make(options, mlp(width=32))
    for target, wrong in (
        (handle, state | {"num_ranks": 5}),
        (handle, state | {"rank": 1 - state["rank"]}),
        (handle, state | {"format": 99}),
        (handle, state | {"seed": 4}),
        (handle, {"step": 3}),
        (handle, {"format": 1, "step": 3}),
        (handle, None),
        (other, state),
        (handle, state | {"residual": state["residual"][:-1]}),
        (handle, state | {"residual": state["residual"].clone().index_fill_(0, torch.tensor([5]), torch.nan)}),
        (handle, state | {"residual": state["residual"].clone().index_fill_(0, torch.tensor([5]), torch.inf)}),
        (handle, state | {"loss_scale": torch.nan}),
    ):
        try:
            target.load_state_dict(wrong)
        except ValueError as error:
            said.append(str(error))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        handle.load_state_dict(state | {"num_ranks": 5}, strict=False)
    said.append(str(caught[0].message))
    for step in range(4, 8):
        step_once(ddp, optimizer, step)
    assert [record.exchange for record in handle.records if record.bucket <= 0][-4:] == ["allgather_topk"] * 4
    said.append(str(handle.statistics().step))
    for each in (handle, other):
        each.close()
    return said


def test_a_state_that_does_not_fit_is_refused_or_its_residuals_are_dropped(pool):
    for said in pool.run(misfits, num_ranks=2):
        ranks, rank, version, seed, nothing, damaged, none, model, residual, nan, inf, scale, dropped, step = said
        assert damaged.startswith("the state is damaged (KeyError: 'num_ranks')")
        assert none.startswith("the state is damaged (AttributeError")
        assert seed.startswith("the state was made with seed 4, but this run has 0")
        assert ranks.startswith("the state is of 5 ranks, but there are 2; strict=False")
        assert "each rank loads its own" in rank
        assert version.startswith("the state has format 99, but this version reads 1")
        assert nothing.startswith("the state has format None")
        assert "another model: parameter '0.bias' differs" in model
        assert "does not have the size" in residual
        assert nan.startswith("the residual holds Inf or NaN; strict=False")
        assert inf == nan
        assert scale.startswith("the loss scale of the state is nan")
        assert dropped == "the state is of 5 ranks, but there are 2: residuals are dropped"
        assert step == "8"
