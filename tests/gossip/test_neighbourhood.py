"""A silent neighbour is given up; one that only waits, or whose message is slow, is not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from headway import PeerLost, gossip
from headway.lab import Lab, LinkSpec, Phase, Scenario, When, possible
from headway.lab.playback import Action
from tests import forked
from tests.gossip.problem import Quadratic

SCRIPT = Path(__file__).with_name("scripts") / "slow.py"
MODEL_BYTES = 4 * (280 * 280 + 280)
TIMEOUT_S, SLOW_BPS = 3.0, 1.6e6
"""A process may be held up for a while by others of a busy machine; a message takes longer than that."""
STOPPED = 2


@pytest.mark.pool
def test_a_rank_that_stops_is_given_up_and_learns_it_and_no_other_rank_is(pool):
    """While its neighbours wait for it, theirs wait for them, and know that these only wait."""
    seen = pool.run(stop_for_a_while, num_ranks=5)
    assert seen[STOPPED] == ("the other ranks have given up waiting for this one (in gossip)", ())
    for rank, neighbours in {0: (1, 4), 1: (0,), 3: (4,), 4: (0, 3)}.items():
        assert seen[rank] == ("", neighbours)


def stop_for_a_while() -> tuple[str, tuple[int, ...]]:
    """Train on a ring; rank 2 is stopped, and goes on when the others are done."""
    rank = dist.get_rank()
    model = Quadratic(rank)
    optimizer = gossip.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01), algorithm="dcd", timeout_s=TIMEOUT_S)
    pids = [torch.empty(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    error = ""
    try:
        for step in range(60):
            if (rank, step) == (STOPPED, 20):
                os.kill(os.getpid(), signal.SIGSTOP)
            optimizer.zero_grad()
            model().backward()
            optimizer.step()
        if rank == 0:
            os.kill(int(pids[STOPPED]), signal.SIGCONT)
        optimizer.state_dict()
    except PeerLost as lost:
        error = str(lost)
    neighbours = optimizer.neighbours
    optimizer.close()
    return error, neighbours


@pytest.mark.lab
@pytest.mark.skipif(possible.missing() is not None, reason=str(possible.missing()))
def test_a_message_that_takes_longer_than_the_timeout_costs_no_neighbour(tmp_path):
    """Both ends wait, and say so on another connection than the message is on."""
    seen: dict[int, tuple[float, int, int]] = {}

    def note(rank: int, line: str) -> None:
        if line.startswith("longest "):
            _, seconds, _, num_events, _, num_bytes = line.split()
            seen[rank] = (float(seconds), int(num_events), int(num_bytes))

    slow = Phase(start=When(at_step=1), link=LinkSpec(bandwidth_bps=SLOW_BPS))
    fast = Phase(start=When(at_step=0))
    scenario = Scenario(link=LinkSpec(latency_s=0.005, bandwidth_bps=1e8), phases=(fast, slow))
    is_slow = tmp_path / "slow"

    def tell(action: Action) -> None:
        if action.phase == 1:
            is_slow.touch()

    with Lab(3, scenario, on_action=tell) as lab:
        result = lab.run(forked.command(SCRIPT, str(TIMEOUT_S), str(is_slow)), output=note, timeout_s=90)
    assert result.exit_code == 0, result.tails
    assert len(seen) == 3
    for longest_s, num_events, num_bytes in seen.values():
        assert longest_s > TIMEOUT_S
        assert num_events == 0
        assert num_bytes == 2 * 2 * (8 + MODEL_BYTES)  # 2 steps, 2 neighbours
    first_models = 2 * MODEL_BYTES  # rank 0 gives its own to all
    assert int(result.counters.num_bytes.sum()) == pytest.approx(
        first_models + sum(s[2] for s in seen.values()), rel=0.08
    )
