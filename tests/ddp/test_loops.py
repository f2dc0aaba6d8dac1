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
BY_BUCKET = TOPK | {"fusion": "bucket"}
CASES = [(name, 2) for name in LOOPS]
CASES += [(name, 3) for name in ("scaler_fp16", "uneven_data_with_join")]
"""Loops and numbers of ranks: of three, two may be ahead, and an average is no sum of halves."""


def run_with_ddp(name: str) -> list[bytes]:
    return [bits(parameters_of(model)) for model in LOOPS[name](lambda model, scaler=None, **each: wrap(model, **each))]


def run_with_reference(name: str) -> list[bytes]:
    def parallelise(model: nn.Module, scaler: Any = None, **options: Any) -> nn.parallel.DistributedDataParallel:
        ddp = wrap(model, **options)
        hook = ReferenceHook(RATIO, scaler, may_skip_parameters="find_unused_parameters" in options)
        ddp.register_comm_hook(hook, reference_hook)
        return ddp

    return [bits(parameters_of(model)) for model in LOOPS[name](parallelise)]


def run_with_headway(name: str, config: dict[str, Any], buffers: str = "average") -> tuple[list[bytes], list[Any]]:
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
    dense, dense_records = run_with_headway(name, PLAIN, buffers="ddp")
    topk, topk_records = run_with_headway(name, TOPK)
    return {
        "dense": dense,
        "ddp": run_with_ddp(name),
        "topk": topk,
        "reference": run_with_reference(name),
        "saved": 1 - sum(r.wire_bytes for r in topk_records) / sum(r.wire_bytes for r in dense_records),
        "exchanges": {record.exchange for record in topk_records},
    }


@pytest.mark.parametrize(("name", "num_ranks"), CASES)
def test_a_loop_does_the_same_as_without_headway(pool, name, num_ranks):
    results = pool.run(both, name, num_ranks=num_ranks)
    for seen in results:
        assert seen["dense"] == seen["ddp"]
        assert seen["topk"] == seen["reference"]
        assert seen["topk"] != seen["dense"]
        assert seen["exchanges"] == {"allgather_topk"}  # compression really ran, from the first step on
        assert seen["saved"] > 0.7
    assert len({seen["topk"][-1] for seen in results}) == 1


def overflow_by_bucket() -> dict[str, Any]:
    parameters, records = run_with_headway("scaler_fp16", BY_BUCKET)
    return {"parameters": parameters, "buckets": {record.bucket for record in records[-5:]}, "saved": saved_by(records)}


def saved_by(records: list[Any]) -> float:
    return 1 - sum(record.wire_bytes for record in records) / sum(record.dense_bytes for record in records)


def num_skipped_first(parameters: list[bytes]) -> int:
    return next(number for number, each in enumerate(parameters) if each != parameters[0])


def test_steps_that_overflow_are_skipped_by_all_ranks_if_buckets_go_alone(pool):
    """One bucket may overflow when others of its step are on their way already."""
    plain = pool.run(run_with_ddp, "scaler_fp16", num_ranks=3)
    results = pool.run(overflow_by_bucket, num_ranks=3)
    for seen in results:
        assert seen["parameters"] == results[0]["parameters"]
        assert num_skipped_first(seen["parameters"]) == num_skipped_first(plain[0]) > 1
        assert len(set(seen["parameters"])) > 4
        assert seen["buckets"] > {0, 1}  # each for itself
        assert seen["saved"] > 0.5
