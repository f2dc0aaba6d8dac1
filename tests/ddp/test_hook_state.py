"""The state alone, handed buckets as DDP would."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch.futures import Future

import headway
from tests.ddp.training import LINK

pytestmark = pytest.mark.pool

NUM_BUCKETS = 3
NUM_GOOD_STEPS = 3  # until then buckets are still being learnt


@dataclass
class PlainBucket:
    """Stands in for a bucket of DDP, of one parameter."""

    number: int
    parameter: torch.Tensor

    def index(self) -> int:
        return self.number

    def buffer(self) -> torch.Tensor:
        return torch.ones_like(self.parameter)

    def parameters(self) -> list[torch.Tensor]:
        return [self.parameter]

    def is_last(self) -> bool:
        return self.number == NUM_BUCKETS - 1


def fail(*_: object) -> None:
    raise ZeroDivisionError("made to fail")


def fail_in_a_fused_step() -> dict:
    """Let the exchange fail on all ranks alike; who abandons what only writes it down, so that the pool can go on."""
    config = headway.Fixed(exchange="allgather_topk", ratio=0.1, algorithm="ring", fusion="step", link=LINK)
    state = headway.HookState(config)
    buckets = [PlainBucket(number, torch.zeros(100)) for number in range(NUM_BUCKETS)]
    abandoned: list[bool] = []
    for _ in range(NUM_GOOD_STEPS):
        futures = [state.submit(bucket) for bucket in buckets]
        state._engine.drain()
        assert all(future.done() for future in futures)
    state._executor.abandon = lambda: abandoned.append(True)
    state._executor.all_gather = fail
    kept: list[Future] = [state.submit(bucket) for bucket in buckets[:-1]]
    was_done = [future.done() for future in kept]
    futures = [*kept, state.submit(buckets[-1])]
    seen = {"was_done": was_done, "error": error_of(state), "abandoned": any(abandoned)}
    seen["is_done"] = [future.done() for future in futures]
    state.close()
    return seen


def error_of(state: headway.HookState) -> str:
    """Wait for the engine, which waits for nobody: it has run or given up every task then."""
    try:
        state._engine.drain()
    except ZeroDivisionError as error:
        return str(error)
    return "nothing failed"


def test_no_bucket_is_left_open_when_a_fused_step_fails(pool):
    """Backward waits for the futures of the buckets that were kept for the last one, too: they must not stay open."""
    for seen in pool.run(fail_in_a_fused_step, num_ranks=2):
        assert seen["error"] == "made to fail"
        assert seen["was_done"] == [False, False]
        assert seen["is_done"] == [True, True, True]
        assert seen["abandoned"]
