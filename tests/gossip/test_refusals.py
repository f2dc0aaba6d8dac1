"""What cannot work is refused before anything is sent, in words that say what to do."""

from __future__ import annotations

import warnings
from typing import Any

import networkx
import pytest
import torch
import torch.distributed as dist
from torch import nn

from headway import gossip
from headway.compress import RandomK, StochasticQuantizer
from tests.gossip.loop import network, wrapped

pytestmark = pytest.mark.pool


CANNOT = {
    "an unknown algorithm": ({"algorithm": "push-sum"}, "algorithm is 'push-sum', but must be one of dpsgd, naive"),
    "an unknown topology": ({"topology": "line"}, "topology is 'line'"),
    "a biased compressor": (
        {"algorithm": "dcd", "compressor": "sign"},
        "dcd needs an unbiased compressor, and Sign() is not: use choco with it",
    ),
    "a relative quantiser with ecd": (
        {"algorithm": "ecd", "compressor": StochasticQuantizer(bits=8)},
        "give StochasticQuantizer a fixed step, or step='auto'",
    ),
    "random-k with ecd": ({"algorithm": "ecd", "compressor": RandomK(0.1)}, "its noise must not grow"),
    "a compressor with dpsgd": (
        {"algorithm": "dpsgd", "compressor": StochasticQuantizer(bits=8)},
        "dpsgd sends models as they are",
    ),
    "something else as compressor": ({"compressor": 8}, "compressor is 8"),
    "a name as compressor": ({"compressor": "8bit"}, "compressor is '8bit'"),
    "a class as compressor": ({"compressor": StochasticQuantizer}, "must be one without a memory"),
    "an automatic step for dcd": ({"compressor": StochasticQuantizer(step="auto")}, "step='auto' is for ecd"),
    "a word as consensus step": ({"algorithm": "choco", "consensus_step": "a"}, "consensus_step is 'a'"),
    "no topology": ({"topology": None}, "topology is None"),
    "a consensus step with dcd": ({"consensus_step": 0.5}, "consensus_step is for choco"),
    "a consensus step above 1": ({"algorithm": "choco", "consensus_step": 1.5}, "above 0 and at most 1"),
    "an unknown memory": ({"memory": "large"}, "memory is 'large'"),
    "a negative interval": ({"buffer_interval": -1}, "buffer_interval is -1"),
    "no local step": ({"local_steps": 0}, "local_steps is 0"),
    "no time": ({"timeout_s": 0}, "timeout_s is 0"),
    "a seed that is none": ({"seed": "lucky"}, "seed is 'lucky'"),
    "a graph of another size": ({"topology": networkx.path_graph(5)}, "nodes must be the ranks, 0 to 1"),
}


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_be_is_refused_before_anything_is_sent(pool, name):
    options, message = CANNOT[name]
    for said in pool.run(refused, options, num_ranks=2):
        assert message in said


def refused(options: dict) -> str:
    from headway.compress import Sign

    options = {name: Sign() if value == "sign" else value for name, value in options.items()}
    model = network()
    try:
        gossip.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
    except ValueError as error:
        return str(error)
    return "nothing was wrong"


def test_models_and_optimizers_that_do_not_fit_are_refused(pool):
    for said in pool.run(misfits, num_ranks=2):
        assert "give the bare model" in said["ddp"]
        assert "1 parameters that are not the model's" in said["foreign"]
        assert "torch.float64" in said["double"]
        assert "gossips already" in said["twice"]
        assert "in this order, not SGD and Sequential" in said["swapped"]
        assert "this optimizer is closed" in said["closed"]


def misfits() -> dict[str, str]:
    said = {}

    def attempt(name: str, action: Any) -> None:
        try:
            action()
        except ValueError as error:
            said[name] = str(error)

    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    ddp = nn.parallel.DistributedDataParallel(network())
    attempt("ddp", lambda: gossip.wrap(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1)))
    foreign = torch.optim.SGD([*model.parameters(), torch.zeros(1, requires_grad=True)], lr=0.1)
    attempt("foreign", lambda: gossip.wrap(model, foreign))
    double = nn.Linear(2, 2).double()
    attempt("double", lambda: gossip.wrap(double, torch.optim.SGD(double.parameters(), lr=0.1)))
    attempt("swapped", lambda: gossip.wrap(sgd, model))
    optimizer = gossip.wrap(model, sgd)
    attempt("twice", lambda: gossip.wrap(model, optimizer))
    optimizer.close()
    optimizer.close()
    attempt("closed", optimizer.step)
    return said


def test_ranks_that_disagree_are_told_who_and_about_what(pool):
    for said in pool.run(disagree, num_ranks=3):
        assert said["topology"] == "ranks [1] have another topology than rank 0: give the same to all"
        assert said["seed"] == "ranks [1] have another algorithm, compressor or seed than rank 0: give the same to all"
        moves = (
            "ranks [1] have another model, or set of parameters that the optimizer moves, than rank 0: "
            "give the same to all"
        )
        assert said["model"] == said["frozen"] == moves


def disagree() -> dict[str, str]:
    odd = dist.get_rank() == 1
    matrix = [[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]]
    cases: dict[str, tuple[nn.Module, dict]] = {
        "topology": (network(), {"topology": matrix if odd else "ring"}),
        "seed": (network(), {"seed": int(odd)}),
        "model": (network(17 if odd else 16), {}),
        "frozen": (network(), {}),
    }
    cases["frozen"][0][0].weight.requires_grad_(not odd)
    said = {}
    for name, (model, options) in cases.items():
        try:
            wrapped(model, **options)
        except ValueError as error:
            said[name] = str(error)
    return said


def test_dcd_warns_where_its_condition_is_violated(pool):
    few, many = pool.run(warnings_of, num_ranks=8)[0]
    assert any(
        "dcd is known to converge on this topology (ring of 8" in text and "it may diverge" in text for text in few
    )
    assert many == []


def warnings_of() -> tuple[list[str], list[str]]:
    found = []
    for bits in (4, 8):
        model = network()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            compressor = StochasticQuantizer(bits=bits)
            optimizer = gossip.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), compressor=compressor)
        optimizer.close()
        found.append([str(warning.message) for warning in caught if "dcd" in str(warning.message)])
    return found[0], found[1]
