"""A round that has failed leaves nothing behind, and one that only some ranks have seen reaches all."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
import torch.distributed as dist

from headway import Fixed, HeadwayError, Link, PeerLost
from headway.elastic import Meeting
from headway.local.regrouping import Regrouping
from tests.local.loop import flat, network, train, wrapped
from tests.ranks import refusal, same_on_all

SPARSE = Fixed(
    exchange="allgather_topk", ratio=0.05, link=Link(latency_s=1e-4, bandwidth_bps=1e9), timeout_s=20.0, fusion="bucket"
)


def fail_next_round(optimizer, *, is_before_it: bool) -> None:
    """Lose the connections of this rank in its next exchange: before it, or when it is over and not yet applied."""
    averager = optimizer._averaging.averager
    take = averager.take

    def lose(bucket) -> None:
        averager.take = take
        if not is_before_it:
            take(bucket)
        raise PeerLost([], "a test")

    averager.take = lose


def take_back(overlap: int) -> tuple[bool, ...]:
    """All ranks lose a round: its exchange is over on all, and none has applied it."""
    model = network(norm=True)
    optimizer = wrapped(model, 2, overlap=overlap, config=SPARSE, on_loss="continue")
    train(model, optimizer, range(9))  # the next exchange begins with the next step
    state, residual = optimizer._rounds.state, optimizer._averaging.residual.clone()
    base, common = state.base.clone(), state.common.clone()
    fail_next_round(optimizer, is_before_it=False)
    train(model, optimizer, range(9, 10 + overlap))
    went_on = optimizer.num_ranks == 3 and state.difference is None
    is_as_before = (
        torch.equal(state.common, common),
        torch.allclose(state.base, base, atol=1e-7),
        torch.equal(optimizer._averaging.residual, residual),
    )
    train(model, optimizer, range(20, 30))
    has_moved = not torch.equal(state.common, common)
    optimizer.average_()
    is_equal = same_on_all(flat(model))
    optimizer.close()
    return went_on, *is_as_before, has_moved, is_equal


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_round_that_nobody_has_applied_is_taken_back(pool, overlap):
    assert pool.run(take_back, overlap, num_ranks=3) == [(True,) * 6] * 3


def train_until(model, optimizer, num_steps: int) -> None:
    while optimizer.num_steps < num_steps:
        train(model, optimizer, range(optimizer.num_steps, optimizer.num_steps + 1))


def fall_behind() -> tuple[bool, ...]:
    """Rank 1 loses a round that the others have applied: its message had arrived."""
    model = network(norm=True)
    optimizer = wrapped(model, 2, config=SPARSE, on_loss="continue")
    train_until(model, optimizer, 9)
    state, common = optimizer._rounds.state, optimizer._rounds.state.common.clone()
    if dist.get_rank() == 1:
        fail_next_round(optimizer, is_before_it=False)
    train_until(model, optimizer, 12)  # the others notice in the round after that of step 10
    has_moved, is_equal = not torch.equal(state.common, common), same_on_all(state.common)
    train_until(model, optimizer, 20)
    optimizer.average_()
    ends_equal = same_on_all(flat(model))
    optimizer.close()
    return optimizer.num_steps == 20, has_moved, is_equal, ends_equal


def test_a_rank_that_has_missed_a_round_takes_the_model_of_the_others(pool):
    assert pool.run(fall_behind, num_ranks=3) == [(True,) * 4] * 3


def lose_without_asking_to_go_on() -> str:
    model = network()
    optimizer = wrapped(model, 1, config=SPARSE)
    train(model, optimizer, range(3))
    fail_next_round(optimizer, is_before_it=True)
    try:
        train(model, optimizer, range(3, 5))
    except PeerLost as error:
        return str(error)
    finally:
        optimizer.abandon()
        optimizer.close()
    return "went on"


def test_by_default_a_loss_is_raised(pool):
    for said in pool.run(lose_without_asking_to_go_on, num_ranks=2):
        assert "given up waiting" in said or "lost rank" in said


def ask_for_nonsense() -> str:
    return refusal(lambda: wrapped(network(), 1, on_loss="hope"))


def test_other_wishes_are_refused(pool):
    assert pool.run(ask_for_nonsense, num_ranks=1) == ["on_loss is 'hope', but must be 'raise' or 'continue'"]


class Meetings:
    """Stands in for meetings at a store: notes whom ranks hold for lost."""

    def __init__(self) -> None:
        self.lost = []

    def meet(self, lost) -> Meeting:
        self.lost.append(tuple(lost))
        return Meeting(members=None, guests=())


def test_ranks_meet_again_if_another_one_is_gone_before_all_are_connected():
    meetings, made, settled = Meetings(), [], []

    def make(members, before, costs) -> str:
        made.append(members)
        if len(made) < 3:
            raise [HeadwayError("rank 0 cannot connect"), PeerLost([2], "a test")][len(made) - 1]
        return "an averaging"

    failed = SimpleNamespace(cut_off=lambda: None, close=lambda _: None, loop=MagicMock())
    Regrouping(meetings, make).regroup(failed, PeerLost([1], "a test"), settled.append)
    assert meetings.lost == [(1,), (), (2,)]
    assert settled == ["an averaging"]
