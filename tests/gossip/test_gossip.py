"""Workers that die or leave are dropped, and the others train on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from headway import PeerLost, gossip
from tests.forked import ForkedScripts
from tests.gossip.problem import Quadratic, flat

SCRIPT = Path(__file__).with_name("scripts") / "digits.py"
NUM_RANKS, UNLUCKY, TIMEOUT_S = 5, 2, 60.0
SURVIVORS = [rank for rank in range(NUM_RANKS) if rank != UNLUCKY]


@pytest.fixture
def run_ranks(tmp_path):
    with ForkedScripts(tmp_path) as scripts:

        def run(ranks: list[int]) -> dict[int, dict]:
            for rank in range(NUM_RANKS):
                scripts.start(SCRIPT, str(tmp_path / "store"), str(rank), str(NUM_RANKS), str(TIMEOUT_S))
            return {rank: json.loads(text) for rank, text in scripts.outputs(ranks, timeout_s=80).items()}

        yield run


def test_when_one_of_five_is_killed_the_others_reach_the_accuracy_without_it(run_ranks):
    saw = run_ranks(SURVIVORS)
    for rank in SURVIVORS:
        assert (saw[rank]["error"], saw[rank]["step"]) == (None, 400)
        assert saw[rank]["accuracy"] > 0.93
        assert saw[rank]["distance"] < 1
        assert saw[rank]["longest_s"] < TIMEOUT_S / 2
    assert len({saw[rank]["checksum"] for rank in SURVIVORS}) == 1  # averages are the same on all that are left
    for rank, neighbours in {0: [1, 4], 1: [0], 3: [4], 4: [0, 3]}.items():
        assert saw[rank]["neighbours"] == neighbours
    for rank in (1, 3):
        event, _missing = saw[rank]["events"]
        assert f"rank {UNLUCKY} is gone; neighbours left: {saw[rank]['neighbours'][0]}" in event
    for rank in (0, 4):
        assert saw[rank]["events"] == ["step 400: averages are without rank 2"]


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
    """One or two at once, adjacent or not, rank 0, all neighbours of a rank, the only other one."""
    seen = pool.run(leave_early, algorithm, memory, local_steps, leavers, num_ranks=num_ranks)
    left = [rank for rank in range(num_ranks) if rank not in leavers]
    for rank in left:
        assert (seen[rank]["error"], seen[rank]["step"]) == ("", 30)
        neighbours = {(rank - 1) % num_ranks, (rank + 1) % num_ranks} - {rank}
        assert set(seen[rank]["neighbours"]) == neighbours - set(leavers)
        lost = {event.rank for event in seen[rank]["events"] if event.kind == "neighbour_lost"}
        assert lost == neighbours & set(leavers)
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
    seen["weight"] = estimates.own_weight + sum(estimates.weights.values())
    if rank in leavers:
        optimizer._connections.cut()
    seen |= {"events": optimizer.events, "neighbours": optimizer.neighbours}
    optimizer.close()
    return seen
