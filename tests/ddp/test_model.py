"""Models as people wrap them: compiled, with parameters that DDP ignores, in a group of some ranks."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import headway
from headway.compress import Shape
from tests.ddp.training import bits, fixed, mlp, parameters_of, step_once, wrap

pytestmark = pytest.mark.pool

TOPK = {"exchange": "allgather_topk", "ratio": 0.1, "fusion": "step", "algorithm": "ring"}
NUM_STEPS = 4


def compiled(module: nn.Module) -> nn.Module:
    return torch.compile(module, backend="aot_eager")


WAYS = {
    "uncompiled": DistributedDataParallel,
    "compiled DDP": lambda model: compiled(DistributedDataParallel(model)),
    "DDP of a compiled model": lambda model: DistributedDataParallel(compiled(model)),
}


def train(model: nn.Module, way: str, state: dict[str, Any] | None = None) -> dict[str, Any]:
    """Train a model wrapped in one way, perhaps from a state; return the states it begins and ends with."""
    module = WAYS[way](model)
    handle = headway.attach(module, fixed(**TOPK))
    if state is not None:
        handle.load_state_dict(state)
    begin = handle.state_dict()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(NUM_STEPS):
        step_once(module, optimizer, step)
    seen = {"begin": begin, "end": handle.state_dict(), "exchanges": {record.exchange for record in handle.records}}
    handle.close()
    return seen


def handover(first: str, second: str) -> dict[str, Any]:
    """Train a model wrapped in one way, and go on with its state in another."""
    model = mlp()
    before = train(model, first)
    after = train(model, second, before["end"])
    torch._dynamo.reset()
    return {
        "parameters": parameters_of(model),
        "is_same_residual": torch.equal(before["end"]["residual"], after["begin"]["residual"]),
        "names": sorted(name for bucket in after["end"]["buckets"] for name in bucket["names"]),
        "exchanges": before["exchanges"] | after["exchanges"],
    }


@pytest.mark.parametrize("way", [name for name in WAYS if name != "uncompiled"])
def test_compiled_models_train_and_their_states_fit_uncompiled_ones(pool, way):
    plain = pool.run(handover, "uncompiled", "uncompiled", num_ranks=2)
    for order in ((way, "uncompiled"), ("uncompiled", way)):
        results = pool.run(handover, *order, num_ranks=2, timeout_s=120)
        assert len({bits(seen["parameters"]) for seen in results}) == 1
        for seen, expected in zip(results, plain, strict=True):
            assert seen["is_same_residual"]
            assert seen["names"] == sorted(name for name, _ in mlp().named_parameters())
            assert seen["exchanges"] == {"allgather_topk"}
            assert torch.allclose(seen["parameters"], expected["parameters"], atol=1e-5)


def train_in_half_precision(dtype: torch.dtype) -> list[int]:
    """Return the bytes that a dense step sends, and is predicted to send, with a ring."""
    ddp = wrap(mlp().to(dtype))
    config = fixed(exchange="dense", algorithm="ring", fusion="step")
    handle = headway.attach(ddp, config)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in range(NUM_STEPS):
        step_once(ddp, optimizer, step)
    record = handle.records[-1]
    shape = sum((bucket.shape for bucket in handle._averaging.averager.layout), Shape(()))
    cost = handle._averaging.loop.current.costs.of(handle.plan, shape)
    handle.close()
    return [record.wire_bytes, record.dense_bytes, cost.wire_bytes]


@pytest.mark.parametrize(("dtype", "entry_bytes"), [(torch.bfloat16, 2), (torch.float16, 2), (torch.float64, 8)])
def test_dense_sums_cost_what_the_type_of_the_model_takes(pool, dtype, entry_bytes):
    num_entries = sum(parameter.numel() for parameter in mlp().parameters())
    for sent, dense, predicted in pool.run(train_in_half_precision, dtype, num_ranks=2):
        assert sent == dense == predicted == num_entries * entry_bytes


class Partly(nn.Module):
    """A model of which DDP ignores one layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.shared, self.own = nn.Linear(20, 40), nn.Linear(40, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.own(torch.relu(self.shared(x)))


def ignore_some() -> dict[str, Any]:
    model = Partly()
    ignored = ["own.weight", "own.bias"]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
    states = []
    for _ in range(2):
        ddp = wrap(model)
        handle = headway.attach(ddp, fixed(**TOPK))
        if states:
            handle.load_state_dict(states[0])
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        for step in range(NUM_STEPS):
            step_once(ddp, optimizer, step)
        states.append(handle.state_dict())
        handle.close()
    return {
        "names": sorted(name for bucket in states[1]["buckets"] for name in bucket["names"]),
        "shared": parameters_of(model.shared),
        "own": parameters_of(model.own),
    }


def test_parameters_that_ddp_ignores_are_no_part_of_the_state(pool):
    first, second = pool.run(ignore_some, num_ranks=2)
    assert first["names"] == ["shared.bias", "shared.weight"]
    assert torch.equal(first["shared"], second["shared"])
    assert not torch.equal(first["own"], second["own"])


def forget() -> bool:
    ddp = wrap(mlp())
    handle = headway.attach(ddp, fixed(**TOPK))
    step_once(ddp, torch.optim.SGD(ddp.parameters(), lr=0.05), 0)
    handle.close()
    model = weakref.ref(ddp)
    del ddp, handle
    gc.collect()
    return model() is None


def test_a_model_is_free_when_nobody_needs_it_any_more(pool):
    """And with it its process group: a hook must not keep its model alive."""
    assert pool.run(forget, num_ranks=2) == [True, True]


def refusal(*args: Any, **options: Any) -> str:
    try:
        headway.attach(*args, **options).close()
    except ValueError as error:
        return str(error)
    return "accepted"


def wrong_uses() -> list[str]:
    ddp = wrap(mlp())
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        reduced_by_python = wrap(mlp())
    return [
        refusal(ddp, fixed(**TOPK), buffers="sometimes"),
        refusal(ddp, fixed(**TOPK), scaler=1024.0),
        refusal(reduced_by_python, fixed(**TOPK)),
    ]


def test_what_cannot_work_is_refused_in_one_sentence(pool):
    for buffers, scaler, reducer in pool.run(wrong_uses, num_ranks=2):
        assert buffers == "buffers is 'sometimes', but must be one of 'average', 'ddp'"
        assert scaler == "scaler is a float, but must be a torch.amp.GradScaler"
        assert "'python_reducer', which calls no communication hook" in reducer
