"""What carries control rounds, on real ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_process_group_store

from headway.collectives import Executor
from headway.tuner import RoundRequest
from headway.tuner.transport import BackgroundTransport, InlineTransport


def add_up(gathered) -> torch.Tensor:
    return gathered.reports.sum(dim=0)


def request_of(report: float, pause_s: float | None = 0.0, decide=add_up) -> RoundRequest:
    numbers = torch.tensor([report], dtype=torch.float64)
    return RoundRequest(
        report=numbers, num_answers=1, decide=decide, num_pings=2, reconsider=lambda _: 0, pause_s=pause_s
    )


def hold_rounds() -> list[float]:
    """Hold one round at the end of a step, one at once in the background, and one on the calling thread."""
    answers = []
    with Executor(timeout_s=20) as executor:
        transport = BackgroundTransport(Executor(timeout_s=20, beside=executor), patience_s=20)
        try:
            transport.start(request_of(executor.rank + 1.0))
            transport.end_step()
            answers.append(transport.result().item())
            transport.start(request_of(10.0, pause_s=None))
            answers.append(transport.result().item())
        finally:
            transport.close()
        inline = InlineTransport(executor)
        inline.start(request_of(100.0))
        answers.append(inline.result().item())
    return answers


@pytest.mark.pool
def test_a_round_gives_all_ranks_the_answer_of_rank_0(pool):
    assert pool.run(hold_rounds, num_ranks=3) == [[6.0, 30.0, 300.0]] * 3


def fail(*_: object) -> torch.Tensor:
    raise ZeroDivisionError


def fail_in_a_round() -> str:
    transport = BackgroundTransport(Executor(timeout_s=20), patience_s=20)
    try:
        transport.start(request_of(1.0, decide=fail))
        transport.end_step()
        transport.result()
    except ZeroDivisionError:
        return "failed"
    except Exception as error:
        return type(error).__name__
    finally:
        transport.close()
    return "went on"


@pytest.mark.pool
def test_what_fails_in_a_round_is_raised_when_its_result_is_due(pool):
    assert pool.run(fail_in_a_round, num_ranks=3) == ["failed", "PeerLost", "PeerLost"]


def wait_in_vain() -> str:
    """Rank 1 is alive, but never starts the round: rank 0 gives up after the time to wait for an answer."""
    executor = Executor(timeout_s=20)
    transport = BackgroundTransport(executor, patience_s=0.5)
    store = _get_process_group_store(dist.group.WORLD)
    try:
        if executor.rank == 1:
            store.wait(["rank 0 has given up"])
            return "was not there"
        transport.start(request_of(1.0, pause_s=None))
        transport.result()
    except Exception as error:
        return type(error).__name__
    finally:
        store.set("rank 0 has given up", "")
        transport.close()
    return "went on"


@pytest.mark.pool
def test_an_answer_that_does_not_come_ends_the_wait(pool):
    assert pool.run(wait_in_vain, num_ranks=2) == ["HeadwayError", "was not there"]
