"""Training loops as people write them do the same with Headway as without it, to the bit.

Dense is compared with plain DDP, and top-k with a hook of the test's own, in plain torch: see `ReferenceHook`.
"""

from __future__ import annotations

import math
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
NUM_STEPS_IN_ONE = 5
"""DDP's first bucket holds the whole model, and its later ones are adopted after so many steps."""
CASES = [(name, 2) for name in LOOPS]
CASES += [(name, 3) for name in ("scaler_fp16", "uneven_data_with_join")]
"""Loops and numbers of ranks: of three, two may be ahead, and an average is no sum of halves."""


def run_with_ddp(name: str) -> list[bytes]:
    return [bits(parameters_of(model)) for model in LOOPS[name](lambda model, scaler=None, **each: wrap(model, **each))]


def run_with_reference(name: str, alone_from: float = math.inf) -> list[bytes]:
    def parallelise(model: nn.Module, scaler: Any = None, **options: Any) -> nn.parallel.DistributedDataParallel:
        ddp = wrap(model, **options)
        may_skip = "find_unused_parameters" in options
        hook = ReferenceHook(RATIO, scaler, may_skip_parameters=may_skip, alone_from=alone_from)
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
    return {
        "topk": parameters,
        "reference": run_with_reference("scaler_fp16", NUM_STEPS_IN_ONE),
        "buckets": {record.bucket for record in records},
        "num_rejected_in_part": len(steps_rejected_in_part(records)),
    }


def steps_rejected_in_part(records: list[Any]) -> set[int]:
    """Return the steps in which one bucket was rejected, and another was not."""
    rejected, averaged = (
        {record.step for record in records if math.isnan(record.gain) == is_rejected} for is_rejected in (True, False)
    )
    return rejected & averaged


def test_a_step_that_overflows_when_some_of_its_buckets_have_gone_is_taken_back(pool):
    results = pool.run(overflow_by_bucket, num_ranks=3)
    for seen in results:
        assert seen["topk"] == seen["reference"]
        assert len(set(seen["topk"])) > 4  # most steps were none of these
        assert seen["buckets"] > {0, 1}
        assert seen["num_rejected_in_part"] > 0
