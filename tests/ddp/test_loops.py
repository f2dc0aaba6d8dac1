"""Training loops as people write them do the same with Headway as without it, to the bit.

Dense is compared with plain DDP, and top-k with a hook of the test's own, in plain torch: see `ReferenceHook`.
"""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import headway
from tests.ddp.loops import LOOPS
from tests.ddp.reference_hook import ReferenceHook, reference_hook
from tests.ddp.training import bits, fixed, parameters_of, wrap

pytestmark = pytest.mark.pool

RATIO = 0.1
PLAIN = {"exchange": "dense", "algorithm": "native", "fusion": "bucket"}
TOPK = {"exchange": "allgather_topk", "ratio": RATIO, "fusion": "step", "algorithm": "ring"}


def run_with_ddp(name: str) -> list[bytes]:
    return [bits(parameters_of(model)) for model in LOOPS[name](lambda model, scaler=None, **each: wrap(model, **each))]


def run_with_reference(name: str) -> list[bytes]:
    def parallelise(model: nn.Module, scaler: Any = None, **options: Any) -> nn.parallel.DistributedDataParallel:
        ddp = wrap(model, **options)
        hook = ReferenceHook(RATIO, scaler, may_skip_parameters="find_unused_parameters" in options)
        ddp.register_comm_hook(hook, reference_hook)
        return ddp

    return [bits(parameters_of(model)) for model in LOOPS[name](parallelise)]


def run_with_headway(name: str, config: dict[str, Any], buffers: str = "ddp") -> tuple[list[bytes], list[Any]]:
    """Return the parameters after every step, and the records of all exchanges."""
    handles = []

    def parallelise(model: nn.Module, scaler: Any = None, **options: Any) -> nn.parallel.DistributedDataParallel:
        ddp = wrap(model, **options)
        handles.append(headway.attach(ddp, fixed(**config), scaler=scaler, buffers=buffers))
        return ddp

    parameters = [bits(parameters_of(model)) for model in LOOPS[name](parallelise)]
    for handle in handles:
        handle.close()
    return parameters, [record for handle in handles for record in handle.records]


def both(name: str) -> dict[str, Any]:
    dense, dense_records = run_with_headway(name, PLAIN)
    topk, topk_records = run_with_headway(name, TOPK)
    return {
        "dense": dense,
        "ddp": run_with_ddp(name),
        "topk": topk,
        "reference": run_with_reference(name),
        "saved": 1 - sum(r.wire_bytes for r in topk_records) / sum(r.wire_bytes for r in dense_records),
        "exchanges": {record.exchange for record in topk_records},
    }


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_does_the_same_as_without_headway(pool, name):
    first, second = pool.run(both, name, num_ranks=2)
    for seen in (first, second):
        assert seen["dense"] == seen["ddp"]
        assert seen["topk"] == seen["reference"]
        assert seen["topk"] != seen["dense"]
        assert seen["exchanges"] == {"allgather_topk"}  # compression really ran, from the first step on
        assert seen["saved"] > 0.7
    assert first["topk"][-1] == second["topk"][-1]
