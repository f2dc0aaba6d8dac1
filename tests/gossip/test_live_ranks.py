"""Averages over the ranks that are alive, found by a roll call."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from headway import PeerLost, gossip
from tests.gossip.problem import Quadratic, flat


@pytest.mark.pool
def test_a_rank_that_averages_alone_learns_which_ranks_are_missing(pool):
    seen = pool.run(average_alone, num_ranks=3)
    assert seen[0].startswith("no answer from ranks 1, 2 within 1.5 s")
    assert seen[1:] == ["", ""]


def average_alone() -> str:
    model = Quadratic(dist.get_rank())
    optimizer = gossip.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01), timeout_s=0.5)
    error = ""
    try:
        if dist.get_rank() == 0:
            optimizer.average_()
    except PeerLost as lost:
        error = str(lost)
    dist.barrier()
    optimizer.close()
    return error


@pytest.mark.pool
def test_a_live_rank_whose_edge_was_lost_still_takes_part_in_averages(pool):
    """One connection of a ring breaks: all ranks are alive, and averages are over all."""
    seen = pool.run(break_an_edge, num_ranks=4)
    assert len({mean for mean, _ in seen}) == 1
    assert [neighbours for _, neighbours in seen] == [(3,), (2,), (1, 3), (0, 2)]


def break_an_edge() -> tuple[float, tuple[int, ...]]:
    """Ranks 0 and 1 stop hearing each other after 10 steps."""
    rank = dist.get_rank()
    model = Quadratic(rank)
    optimizer = gossip.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01), timeout_s=10.0)
    for step in range(30):
        if step == 10 and rank < 2:
            optimizer.state_dict()
            edge = optimizer._gossip.neighbourhood._edges[1 - rank]
            edge._inbox._arrived.put(RuntimeError("as if the connection were closed"))
            edge.send = lambda message: None
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
    optimizer.average_()
    mean = float(flat(model).double().sum())
    for _ in range(5):
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
    neighbours = optimizer.neighbours
    optimizer.close()
    return mean, neighbours
