"""A worker that dies, stops or is too slow is left out, and the others train on."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from headway import MessageError, PeerLost, gossip
from tests.forked import ForkedScripts
from tests.gossip.problem import Quadratic, flat

SCRIPT = Path(__file__).with_name("scripts") / "digits.py"
NUM_RANKS, UNLUCKY = 5, 2
SURVIVORS = [rank for rank in range(NUM_RANKS) if rank != UNLUCKY]


@pytest.fixture
def run_ranks(tmp_path):
    with ForkedScripts(tmp_path) as scripts:

        def run(ranks: list[int]) -> dict[int, dict]:
            for rank in range(NUM_RANKS):
                scripts.start(SCRIPT, str(tmp_path / "store"), str(rank), str(NUM_RANKS))
            return {rank: json.loads(text) for rank, text in scripts.outputs(ranks, timeout_s=80).items()}

        yield run


def test_when_one_of_five_is_killed_the_others_reach_the_accuracy_without_it(run_ranks):
    saw = run_ranks(SURVIVORS)
    for rank in SURVIVORS:
        assert (saw[rank]["error"], saw[rank]["step"]) == (None, 400)
        assert saw[rank]["accuracy"] > 0.93
        assert saw[rank]["distance"] < 1
        assert saw[rank]["longest_s"] < 10
    assert len({saw[rank]["checksum"] for rank in SURVIVORS}) == 1  # averages are the same on all that are left
    for rank, neighbours in {0: [1, 4], 1: [0], 3: [4], 4: [0, 3]}.items():
        assert saw[rank]["neighbours"] == neighbours
    for rank in (1, 3):
        event, _missing = saw[rank]["events"]
        assert f"rank {UNLUCKY} is gone; neighbours left: {saw[rank]['neighbours'][0]}" in event
    for rank in (0, 4):
        assert saw[rank]["events"] == ["step 400: averages are without rank 2"]


@pytest.mark.pool
@pytest.mark.parametrize("algorithm", ["dcd", "choco"])
def test_a_worker_that_stops_is_given_up_and_told_so_and_nobody_else_is(pool, algorithm):
    """While its neighbours wait for it, theirs wait for them, and know that these only wait."""
    seen = pool.run(stop_for_a_while, algorithm, num_ranks=5)
    assert seen[UNLUCKY] == ("the other ranks have given up waiting for this one (in gossip)", ())
    for rank, neighbours in {0: (1, 4), 1: (0,), 3: (4,), 4: (0, 3)}.items():
        assert seen[rank] == ("", neighbours)


def stop_for_a_while(algorithm: str) -> tuple[str, tuple[int, ...]]:
    """Train on a ring; rank 2 is stopped, and goes on when the others are done."""
    rank = dist.get_rank()
    model = Quadratic(rank)
    optimizer = gossip.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01), algorithm=algorithm, timeout_s=1.0)
    pids = [torch.empty(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    said = ""
    try:
        for step in range(60):
            if (rank, step) == (UNLUCKY, 20):
                os.kill(os.getpid(), signal.SIGSTOP)
            optimizer.zero_grad()
            model().backward()
            optimizer.step()
        if rank == 0:
            os.kill(int(pids[UNLUCKY]), signal.SIGCONT)
        optimizer.state_dict()
    except PeerLost as lost:
        said = str(lost)
    neighbours = optimizer.neighbours
    optimizer.close()
    return said, neighbours


LEAVING = [
    ("dcd", "auto", 1, (1,), 4),
    ("dpsgd", "lean", 1, (0,), 4),
    ("choco", "resilient", 2, (1, 2), 6),
    ("ecd", "auto", 1, (0, 3), 5),
    ("naive", "lean", 3, (1,), 2),
]


@pytest.mark.pool
@pytest.mark.parametrize(("algorithm", "memory", "local_steps", "leavers", "num_ranks"), LEAVING)
def test_those_who_are_left_train_on_and_average(pool, algorithm, memory, local_steps, leavers, num_ranks):
    """One or two at once, beside each other or not, rank 0, all neighbours of a rank, the only other one."""
    seen = pool.run(leave_early, algorithm, memory, local_steps, leavers, num_ranks=num_ranks)
    left = [rank for rank in range(num_ranks) if rank not in leavers]
    for rank in left:
        assert (seen[rank]["error"], seen[rank]["step"]) == ("", 30)
        beside = {(rank - 1) % num_ranks, (rank + 1) % num_ranks} - {rank}
        assert set(seen[rank]["neighbours"]) == beside - set(leavers)
        lost = {event.rank for event in seen[rank]["events"] if event.kind == "neighbour_lost"}
        assert lost == beside & set(leavers)
        assert seen[rank]["weight"] == pytest.approx(1)
        assert seen[rank]["mean"] == seen[left[0]]["mean"]


@pytest.mark.pool
def test_without_replicas_a_lost_neighbour_is_an_error_that_says_what_to_do(pool):
    seen = pool.run(leave_early, "dcd", "lean", 1, (1,), num_ranks=4)
    for rank in (0, 2):
        assert seen[rank]["error"] == "lost rank 1 (in gossip; memory='resilient' goes on without a lost neighbour)"


def leave_early(algorithm: str, memory: str, local_steps: int, leavers: tuple[int, ...]) -> dict:
    """Train on a ring; some ranks leave after 12 steps, as processes that end do."""
    rank = dist.get_rank()
    model = Quadratic(rank)
    optimizer = gossip.wrap(
        model,
        torch.optim.SGD(model.parameters(), lr=0.01),
        algorithm=algorithm,
        memory=memory,
        local_steps=local_steps,
        timeout_s=5.0,
    )
    seen = {"error": "", "mean": 0.0}
    try:
        for step in range(12 if rank in leavers else 30):
            optimizer.zero_grad()
            model().backward()
            optimizer.step()
            seen["step"] = step + 1
        optimizer.state_dict()
        if rank not in leavers:
            optimizer.average_()
            seen["mean"] = float(flat(model).double().sum())
    except PeerLost as lost:
        seen["error"] = str(lost)
    estimates = optimizer._gossip.estimates
    seen["weight"] = estimates.own_weight + sum(estimates._weights.values())
    if rank in leavers:
        optimizer._connections._cut()
    seen |= {"events": optimizer.events, "neighbours": optimizer.neighbours}
    optimizer.close()
    return seen


@pytest.mark.pool
def test_a_live_rank_whose_edge_was_lost_still_takes_part_in_averages(pool):
    """One connection of a ring breaks: everybody lives, and averages are over all."""
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
            edge = optimizer._gossip._neighbours._edges[1 - rank]
            edge._came.put(RuntimeError("as if the connection were closed"))
            edge.send = lambda number, message: None
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


@pytest.mark.pool
def test_a_rank_that_takes_other_steps_is_named(pool):
    seen = pool.run(skip_a_number, num_ranks=2)
    assert seen[0] == "message from rank 1: message 4, but 3 is due: ranks must take the same steps"


def skip_a_number() -> str:
    model = Quadratic(dist.get_rank())
    optimizer = gossip.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01), timeout_s=5.0)
    said = ""
    try:
        for step in range(4):
            if step == 2 and dist.get_rank() == 1:
                optimizer.state_dict()
                optimizer._gossip.step += 1
            optimizer.zero_grad()
            model().backward()
            optimizer.step()
        optimizer.state_dict()
    except (MessageError, PeerLost) as error:
        said = str(error)
    optimizer._connections._cut()
    optimizer.close()
    return said
