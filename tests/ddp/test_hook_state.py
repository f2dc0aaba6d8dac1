"""The hook and its state: with DDP, handed buckets as DDP would, and on ranks of which one fails."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn
from torch.futures import Future

import headway
from headway.collectives import calls, ends
from headway.collectives.groups import wait_for
from headway.network import Calibration
from headway.tuner import building
from tests.ddp.training import LINK, Ledger, check_averages, fixed, loss_of, mlp, parameters_of, step_once, wrap
from tests.forked import ForkedScripts

TOPK = {"exchange": "allgather_topk", "ratio": 0.1}
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
        state._averaging.engine.drain()
        assert all(future.done() for future in futures)
    state._averaging.executor.abandon = lambda: abandoned.append(True)
    state._averaging.executor.all_gather = fail
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
        state._averaging.engine.drain()
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


def plain_way() -> dict:
    ddp = wrap(mlp())
    state = headway.HookState(fixed(**TOPK), module=ddp.module)
    ddp.register_comm_hook(state, headway.hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    ledger = Ledger(ddp, state)
    for step in range(5):
        ledger.give(lambda model, step=step: loss_of(model, step))
        step_once(ddp, optimizer, step)
        ledger.apply()
    seen = {"parameters": parameters_of(ddp), "lost": ledger.lost(), "history": state.records}
    state.close()
    return seen


def test_the_plain_pytorch_way(pool):
    check_averages(pool.run(plain_way, num_ranks=2), "allgather_topk")


def after_the_end() -> str:
    ddp = wrap(mlp())
    handle = headway.attach(ddp, fixed(**TOPK))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    step_once(ddp, optimizer, 0)
    handle.close()
    try:
        step_once(ddp, optimizer, 1)
    except ValueError as error:
        return str(error)
    return "nothing was said"


def test_a_backward_after_close_says_what_to_do(pool):
    for said in pool.run(after_the_end, num_ranks=2):
        assert "wrap the model again" in said


def deadlines_of_close(fails: bool) -> tuple[list[float], float]:
    """Return until when each executor waits for the others, and when closing began."""
    ddp = wrap(mlp())
    with mock.patch.object(building, "calibrate", return_value=Calibration(link=LINK)):  # measuring takes long
        handle = headway.attach(ddp, fixed(**TOPK, interval=1, link=None))
    step_once(ddp, torch.optim.SGD(ddp.parameters(), lr=0.01), 0)
    deadlines: list[float] = []

    def note(work: object, deadline: float) -> bool:
        deadlines.append(deadline)
        return wait_for(work, deadline)

    start = time.monotonic()
    with mock.patch.object(calls, "wait_for", note):
        try:
            assert not fails, "made to fail"
            handle.close()
        except AssertionError:
            handle.close()
    return deadlines, start


@pytest.mark.parametrize("fails", [False, True])
def test_all_that_is_closed_waits_for_others_until_one_deadline(pool, fails):
    for deadlines, start in pool.run(deadlines_of_close, fails, num_ranks=2):
        assert len(deadlines) == 2  # the executors of gradients and of control rounds
        assert deadlines[0] == deadlines[1]
        assert (deadlines[0] < start + ends.CLOSING_S) == fails


def odd_gradients(kind: str) -> str:
    torch.manual_seed(0)
    if kind == "sparse":
        model, inputs = nn.Embedding(10, 4, sparse=True), torch.tensor([1, 2])
    else:
        model, inputs = nn.Linear(4, 4, dtype=torch.complex64), torch.ones(2, 4, dtype=torch.complex64)
    ddp = wrap(model)
    handle = headway.attach(ddp, fixed(**TOPK))
    try:
        ddp(inputs).abs().sum().backward()
    except ValueError as error:
        return str(error)
    finally:
        handle.close()
    return "nothing was said"


@pytest.mark.parametrize(
    ("kind", "message"), [("sparse", "use Embedding(sparse=False)"), ("complex", "torch.complex64")]
)
def test_gradients_that_cannot_be_averaged_are_refused(pool, kind, message):
    for said in pool.run(odd_gradients, kind, num_ranks=2):
        assert message in said


SCRIPT = Path(__file__).with_name("scripts") / "failing.py"
NUM_RANKS, TIMEOUT_S = 3, 60.0
DIES = [("star_topk", "bucket", "dies"), ("allgather_topk", "step", "dies"), ("dense", "bucket", "dies")]
FAILS = ("allgather_topk", "bucket", "fails")


@pytest.fixture(scope="module")
def saw(tmp_path_factory):
    """What each rank that is alive saw, by case and rank. All cases run at once: ranks mostly wait."""
    folder = tmp_path_factory.mktemp("failing")
    with ForkedScripts(folder) as scripts:
        cases = {case: range(NUM_RANKS * place, NUM_RANKS * (place + 1)) for place, case in enumerate([*DIES, FAILS])}
        for case, places in cases.items():
            for rank in range(NUM_RANKS):
                scripts.start(
                    SCRIPT, str(folder / f"store-{places[0]}"), str(rank), str(NUM_RANKS), str(TIMEOUT_S), *case
                )
        printed = scripts.outputs([place for places in cases.values() for place in places], timeout_s=60)
    return {
        case: {rank: json.loads(printed[place]) for rank, place in enumerate(places) if printed[place]}
        for case, places in cases.items()
    }


@pytest.mark.parametrize("case", DIES)
def test_a_rank_that_dies_is_named_by_backward_on_all_others(saw, case):
    assert set(saw[case]) == {0, 2}
    for rank in (0, 2):
        assert (saw[case][rank]["error"], saw[case][rank]["lost"], saw[case][rank]["step"]) == ("PeerLost", [1], 3)
        assert saw[case][rank]["seconds"] < TIMEOUT_S / 2


def test_an_error_in_one_engine_surfaces_there_and_the_others_lose_that_rank(saw):
    victim = saw[FAILS][1]
    assert (victim["error"], victim["message"], victim["step"]) == ("ZeroDivisionError", "made to fail", 3)
    for rank in (0, 2):
        assert (saw[FAILS][rank]["error"], saw[FAILS][rank]["lost"], saw[FAILS][rank]["step"]) == ("PeerLost", [1], 3)
        assert saw[FAILS][rank]["seconds"] < TIMEOUT_S / 2
