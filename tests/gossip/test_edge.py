"""Messages along an edge: their sizes and numbers."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from headway import MessageError, PeerLost, gossip
from tests.gossip.problem import Quadratic


@pytest.mark.pool
def test_a_rank_that_takes_other_steps_is_named(pool):
    seen = pool.run(skip_a_number, num_ranks=2)
    assert seen[0] == "message from rank 1: message 4, but 3 is due: ranks must take the same steps"


def skip_a_number() -> str:
    model = Quadratic(dist.get_rank())
    optimizer = gossip.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01), timeout_s=5.0)
    error = ""
    try:
        for step in range(4):
            if step == 2 and dist.get_rank() == 1:
                optimizer.state_dict()
                optimizer._gossip.step += 1
            optimizer.zero_grad()
            model().backward()
            optimizer.step()
        optimizer.state_dict()
    except (MessageError, PeerLost) as raised:
        error = str(raised)
    optimizer._connections.cut()
    optimizer.close()
    return error
