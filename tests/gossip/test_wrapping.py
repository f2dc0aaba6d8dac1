"""What cannot work is refused before anything is sent, on all ranks."""

from __future__ import annotations

from functools import partial
from typing import Any

import networkx
import pytest
import torch
import torch.distributed as dist
from torch import nn

from headway import gossip
from tests.gossip.loop import network, wrapped
from tests.ranks import refusal

pytestmark = pytest.mark.pool


CANNOT: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown algorithm": ({"algorithm": "push-sum"}, "algorithm is 'push-sum', but must be one of dpsgd, naive"),
    "an unknown topology": ({"topology": "line"}, "topology is 'line'"),
    "no topology": ({"topology": None}, "topology is None"),
    "a graph of another size": ({"topology": networkx.path_graph(5)}, "nodes must be the ranks, 0 to 1"),
}


def test_what_cannot_work_is_refused_before_anything_is_sent(pool):
    for refusals in pool.run(refuse_all, num_ranks=2):
        for (_, message), refused in zip(CANNOT.values(), refusals, strict=True):
            assert message in refused


def refuse_all() -> list[str]:
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return [refusal(partial(gossip.wrap, model, sgd, **options)) for options, _ in CANNOT.values()]


def test_models_and_optimizers_that_do_not_fit_are_refused(pool):
    for refused in pool.run(misfits, num_ranks=2):
        assert "give the bare model" in refused["ddp"]
        assert "1 parameters that are not the model's" in refused["foreign"]
        assert "torch.float64" in refused["double"]
        assert "wrapped already" in refused["twice"]
        assert "in this order, not SGD and Sequential" in refused["swapped"]
        assert "this optimizer is closed" in refused["closed"]


def misfits() -> dict[str, str]:
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    ddp = nn.parallel.DistributedDataParallel(network())
    foreign = torch.optim.SGD([*model.parameters(), torch.zeros(1, requires_grad=True)], lr=0.1)
    double = nn.Linear(2, 2).double()
    refusals = {
        "ddp": refusal(lambda: gossip.wrap(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1))),
        "foreign": refusal(lambda: gossip.wrap(model, foreign)),
        "double": refusal(lambda: gossip.wrap(double, torch.optim.SGD(double.parameters(), lr=0.1))),
        "swapped": refusal(lambda: gossip.wrap(sgd, model)),
    }
    optimizer = gossip.wrap(model, sgd)
    refusals["twice"] = refusal(lambda: gossip.wrap(model, optimizer))
    optimizer.close()
    optimizer.close()
    return {**refusals, "closed": refusal(optimizer.step)}


def test_ranks_that_disagree_learn_who_and_about_what(pool):
    for refused in pool.run(disagree, num_ranks=3):
        assert refused["topology"] == "ranks [1] have another topology than rank 0: give the same to all"
        assert (
            refused["seed"] == "ranks [1] have another algorithm, compressor or seed than rank 0: give the same to all"
        )
        moves = (
            "ranks [1] have another model, or set of parameters that the optimizer moves, than rank 0: "
            "give the same to all"
        )
        assert refused["model"] == refused["frozen"] == moves


def disagree() -> dict[str, str]:
    differs = dist.get_rank() == 1
    matrix = [[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]]
    cases: dict[str, tuple[nn.Module, dict]] = {
        "topology": (network(), {"topology": matrix if differs else "ring"}),
        "seed": (network(), {"seed": int(differs)}),
        "model": (network(17 if differs else 16), {}),
        "frozen": (network(), {}),
    }
    cases["frozen"][0][0].weight.requires_grad_(not differs)
    return {name: refusal(partial(wrapped, model, **options)) for name, (model, options) in cases.items()}
