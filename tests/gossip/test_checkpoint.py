"""A run that is resumed goes on to the bit, and only from a state that fits."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.gossip.loop import network, train, wrapped
from tests.gossip.problem import flat

pytestmark = pytest.mark.pool
ALGORITHMS = ("dpsgd", "naive", "dcd", "ecd", "choco")


@pytest.mark.parametrize(("algorithm", "local_steps"), [*((name, 1) for name in ALGORITHMS), ("dcd", 3), ("choco", 2)])
def test_a_resumed_run_goes_on_to_the_bit(pool, algorithm, local_steps):
    assert all(pool.run(resume, algorithm, local_steps, num_ranks=3))


def resume(algorithm: str, local_steps: int) -> bool:
    model = network()
    options = {"algorithm": algorithm, "buffer_interval": 2 if local_steps > 1 else 4, "local_steps": local_steps}
    optimizer = wrapped(model, **options)
    train(model, optimizer, range(7))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    train(model, optimizer, range(7, 19))
    straight = copy.deepcopy(model.state_dict())
    train(model, optimizer, range(19, 21))  # where it was is forgotten
    file.seek(0)
    state = torch.load(file, weights_only=True)
    other = network(seed=5)
    with torch.no_grad():
        other[0].weight.mul_(50)  # for which another automatic step would be found
    again = wrapped(other, **options)
    results = []
    for its_model, its_optimizer in ((other, again), (model, optimizer)):  # in a new process, and in the same
        its_model.load_state_dict(state["model"])
        its_optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # torch goes on with the very tensors
        train(its_model, its_optimizer, range(7, 19))
        results.append(its_model.state_dict())
        its_optimizer.close()
    return all(torch.equal(tensor, result[name]) for result in results for name, tensor in straight.items())


def test_a_single_worker_trains_as_without_gossip_and_can_be_resumed(pool):
    assert pool.run(alone, num_ranks=1) == [True]


def alone() -> bool:
    model, twin = network(), network()
    optimizer, inner = wrapped(model), torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9)
    train(model, optimizer, range(5))
    state = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    train(model, optimizer, range(5, 7))
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    train(model, optimizer, range(5, 10))
    train(twin, inner, range(10))
    assert optimizer.consensus_distance() == 0
    optimizer.average_()
    optimizer.close()
    return torch.equal(flat(model), flat(twin))


def test_a_state_that_does_not_fit_is_refused_on_all_ranks(pool):
    for rank, refused in enumerate(pool.run(load_misfits, num_ranks=2)):
        assert "no state of a gossip optimizer" in refused["inner"]
        assert ("another rank" if rank else "does not fit") in refused["rank"]
        assert "another settings" in refused["settings"]
        assert "another topology" in refused["topology"]
        assert "are not of step 2" in refused["step"]
        assert "it has no 'buffers'" in refused["damaged"]
        assert "after rank 1 was lost" in refused["lost"] if rank == 0 else "rank 0 does not fit" in refused["lost"]


def load_misfits() -> dict[str, str]:
    model = network()
    optimizer = wrapped(model)
    train(model, optimizer, range(2))
    state = optimizer.state_dict()
    refused = {}

    def attempt(name: str, changed: Any) -> None:
        try:
            optimizer.load_state_dict(changed)
        except ValueError as error:
            refused[name] = str(error)

    def with_gossip(**changes: Any) -> dict:
        return {**state, "gossip": {**state["gossip"], **changes}}

    attempt("inner", optimizer.inner.state_dict())
    attempt("rank", with_gossip(rank=0))
    attempt("settings", with_gossip(settings=1))
    attempt("topology", with_gossip(topology=1))
    attempt("step", with_gossip(step=2 + dist.get_rank()))
    attempt("damaged", {**state, "gossip": {k: v for k, v in state["gossip"].items() if k != "buffers"}})
    attempt("lost", with_gossip(lost=[1]) if dist.get_rank() == 0 else state)
    optimizer.close()
    return refused
