"""Estimates of neighbours' models: a sum alone, or with a replica of each neighbour, which can be dropped."""

from __future__ import annotations

import pytest
import torch

from headway.gossip.estimates import Accumulator, Change, Replicas

WEIGHTS = {1: 0.25, 4: 0.5}
CHANGES = [Change(1.0, 1.0), Change(0.5, 2.0), Change(0.0, 1.0), Change(-1.0, 0.5)]


def estimates_after(kind, changes):
    estimates = kind(0.25, WEIGHTS, 3, torch.device("cpu"))
    estimates.start(torch.tensor([1.0, 2.0, 3.0]))
    models = {rank: torch.tensor([1.0, 2.0, 3.0]) for rank in WEIGHTS}
    for step, change in enumerate(changes):
        estimates.begin(change)
        for rank in estimates.ranks:
            message = torch.tensor([step, rank, step * rank], dtype=torch.float32)
            estimates.add(rank, message)
            models[rank] = change.keep * models[rank] + change.gain * message
        estimates.end()
    return estimates, models


@pytest.mark.parametrize("kind", [Accumulator, Replicas])
@pytest.mark.parametrize("num_rounds", range(len(CHANGES) + 1))
def test_the_sum_is_that_of_the_neighbours_models(kind, num_rounds):
    estimates, models = estimates_after(kind, CHANGES[:num_rounds])
    torch.testing.assert_close(estimates.sum, 0.25 * models[1] + 0.5 * models[4])


def test_a_neighbour_is_dropped_with_its_part_of_the_sum_and_its_weight_stays():
    estimates, models = estimates_after(Replicas, CHANGES)
    assert estimates.can_drop(CHANGES[0])
    estimates.drop(4)
    estimates.end()
    assert (estimates.ranks, estimates.own_weight) == ((1,), 0.75)
    torch.testing.assert_close(estimates.sum, 0.25 * models[1])


def test_a_sum_can_drop_a_neighbour_only_where_messages_are_models():
    estimates, _ = estimates_after(Accumulator, [])
    assert [estimates.can_drop(change) for change in CHANGES] == [False, False, True, False]
    estimates.sum.fill_(float("nan"))
    estimates.begin(Change(0.0, 1.0))
    assert estimates.sum.tolist() == [0, 0, 0]


@pytest.mark.parametrize("kind", [Accumulator, Replicas])
def test_a_state_restores_the_sum(kind):
    saved, other = estimates_after(kind, CHANGES)[0], estimates_after(kind, CHANGES[:1])[0]
    other.load(saved.state())
    assert torch.equal(other.sum, saved.sum)
