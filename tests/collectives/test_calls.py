"""Calls that fail or wait: ranks that disagree, found in debug mode; ranks that die or stop; ranks that are busy."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_process_group_store

from headway import MismatchError, PeerLost
from headway.collectives import Executor, calls
from headway.collectives import watch as watch_module
from headway.collectives.calls import _check_same_debug as check_same_debug
from headway.collectives.calls import is_debug
from tests.forked import ForkedScripts

SCRIPT = Path(__file__).with_name("scripts") / "lost.py"
NUM_RANKS = 4
OTHERS = [0, 2, 3]
Case = tuple[str, str, str]
"""Collective, algorithm, and what happens to rank 1."""
PATIENCE_S = 2.0
TIMEOUT_S = 4.0
"""That of the scripts: many processes share few cores, and must answer in time."""


def disagree(about: str) -> str:
    differs = dist.get_rank() == 1
    with Executor(timeout_s=20, debug=True) as executor:
        executor.all_reduce(torch.ones(3), "ring")
        try:
            if about == "collective" and differs:
                executor.all_gather(torch.ones(3), "ring")
            elif about == "graph":
                executor.neighbour_exchange(torch.ones(3), [[1], [0], []] if differs else [[1, 2], [0], [0]])
            elif about == "root":
                executor.broadcast(torch.ones(3), int(differs), "tree")
            else:
                numel = 4 if about == "size" and differs else 3
                dtype = torch.float16 if about == "dtype" and differs else torch.float32
                algorithm = "tree" if about == "algorithm" and differs else "ring"
                algorithm = "native" if about == "native" and differs else algorithm
                executor.all_reduce(torch.ones(numel, dtype=dtype), algorithm)
        except MismatchError as error:
            return str(error)
    return "nothing was noticed"


@pytest.mark.parametrize(
    ("about", "common", "different"),
    [
        ("collective", "3 x torch.float32", "all_gather by ring"),
        ("size", "3 x torch.float32", "4 x torch.float32"),
        ("dtype", "3 x torch.float32", "3 x torch.float16"),
        ("algorithm", "all_reduce by ring", "all_reduce by tree"),
        ("native", "all_reduce by ring", "all_reduce by native"),
        ("graph", "neighbour_exchange by direct", "neighbour_exchange by direct"),
        ("root", "broadcast by tree from rank 0", "broadcast by tree from rank 1"),
    ],
)
def test_in_debug_mode_every_rank_sees_what_all_are_about_to_do(pool, about, common, different):
    for message in pool.run(disagree, about, num_ranks=3):
        head, *lines = message.splitlines()
        assert head == "ranks disagree about the next collective:"
        assert [line.split(":")[0] for line in lines] == ["  rank 0", "  rank 1", "  rank 2"]
        assert common in lines[0]
        assert common in lines[2]
        assert different in lines[1]
        assert "call 3" in lines[0]  # the first compares debug modes


def agree() -> list[float]:
    with Executor(timeout_s=20, debug=True) as executor:
        return [executor.all_reduce(torch.ones(3), "ring")[0].item() for _ in range(5)]


def test_in_debug_mode_ranks_that_agree_go_on(pool):
    assert pool.run(agree, num_ranks=3) == [[3.0] * 5] * 3


def be_patient_for(executor: Executor, seconds: float) -> None:
    """Wait only this long for ranks that are alive; torch's own timeout is at least that of connecting."""
    executor._calls.wire.patience_s = seconds
    executor._calls._groups.cpu._set_default_timeout(timedelta(seconds=seconds + 1))


def disagree_unnoticed() -> str:
    """Without debug mode ranks that disagree about a size never exchange data: no wrong sum, but a deadline."""
    with Executor(timeout_s=20, debug=False) as executor:
        be_patient_for(executor, PATIENCE_S)
        dist.barrier()
        try:
            executor.all_reduce(torch.ones(3 + dist.get_rank()), "ring")
        except PeerLost as error:
            return str(error)
    return "nothing was noticed"


def test_without_debug_mode_ranks_that_disagree_run_into_the_deadline(pool):
    """Both at the same time, or one that came late learns from the other."""
    given_up = "the other ranks have given up waiting for this one"
    messages = [message for message in pool.run(disagree_unnoticed, num_ranks=2) if not message.startswith(given_up)]
    assert messages
    for message in messages:
        assert message.startswith("no answer from rank")
        assert f" within {PATIENCE_S:g} s" in message
        assert "HEADWAY_DEBUG=1 shows whether ranks disagree" in message


def absent_rank(debug: bool) -> tuple[int, ...]:
    """Rank 2 is alive, but does not come for longer than torch would wait."""
    store = _get_process_group_store(dist.group.WORLD)
    with Executor(timeout_s=20, debug=debug) as executor:
        be_patient_for(executor, PATIENCE_S)
        dist.barrier()
        if executor.rank == 2:
            store.wait(["rank 0 has given up", "rank 1 has given up"])
        try:
            executor.all_reduce(torch.ones(3), "ring")
        except PeerLost as error:
            return error.ranks
        finally:
            store.set(f"rank {executor.rank} has given up", "")
    return ()


@pytest.mark.parametrize("debug", [False, True])
def test_a_rank_that_does_not_come_for_as_long_as_torch_waits_is_named(pool, debug):
    assert pool.run(absent_rank, debug, num_ranks=3)[:2] == [(2,), (2,)]


def busy_rank(algorithm: str) -> tuple[float, list[str]]:
    """Rank 1 does something else until another rank has logged it."""
    store = _get_process_group_store(dist.group.WORLD)
    watch_module.FIRST_LOG_S = 0.5
    said: list[str] = []

    def note(record: logging.LogRecord) -> None:
        said.append(record.getMessage())
        if " for rank 1 in " in said[-1]:
            store.set("logged", "")

    handler = logging.Handler()
    handler.emit = note
    logging.getLogger("headway").addHandler(handler)
    try:
        with Executor(timeout_s=20) as executor:
            if executor.rank == 1:
                store.wait(["logged"])
            return executor.all_reduce(torch.ones(3), algorithm)[0].item(), said
    finally:
        watch_module.FIRST_LOG_S = 10.0
        logging.getLogger("headway").removeHandler(handler)


@pytest.mark.parametrize("algorithm", ["ring", "native"])
def test_a_rank_that_is_busy_is_waited_for_and_the_log_says_so(pool, algorithm):
    sums, logs = zip(*pool.run(busy_rank, algorithm, num_ranks=3), strict=True)
    assert sums == (3.0,) * 3
    assert not any(" for rank 1 in " in line for line in logs[1])
    lines = [line for line in logs[0] + logs[2] if " for rank 1 in " in line]  # others may be held up, too
    assert lines
    for line in lines:
        assert re.match(r"rank [02] has waited \d+ s for rank 1 in all_reduce by", line)
        assert "alive, but busy elsewhere; given up after 60 s" in line


def half_debug() -> str:
    try:
        Executor(timeout_s=20, debug=dist.get_rank() == 0)
    except ValueError as error:
        return str(error)
    return "nothing was noticed"


def test_debug_mode_on_some_ranks_only_is_noticed_at_once(pool):
    assert (
        pool.run(half_debug, num_ranks=2)
        == ["debug mode is on for ranks [0] only: set HEADWAY_DEBUG or debug= alike on all ranks"] * 2
    )


def fail_before_the_first_call() -> tuple[int, ...] | str:
    """Rank 1 has connected, and fails before it compares modes with the others."""
    if dist.get_rank() == 1:
        calls._check_same_debug = fail
    try:
        Executor(timeout_s=4)
    except PeerLost as error:
        return error.ranks
    except ZeroDivisionError:
        return "failed"
    finally:
        calls._check_same_debug = check_same_debug
    return "nothing was noticed"


def fail(*_: object) -> None:
    raise ZeroDivisionError


def test_a_rank_that_is_lost_before_the_first_call_is_named(pool):
    assert pool.run(fail_before_the_first_call, num_ranks=3) == [(1,), "failed", (1,)]


@pytest.mark.parametrize(
    ("variable", "argument", "result"),
    [(None, None, False), ("1", None, True), ("0", None, False), ("1", False, False), (None, True, True)],
)
def test_the_debug_argument_overrides_the_variable(monkeypatch, variable, argument, result):
    monkeypatch.delenv("HEADWAY_DEBUG", raising=False)
    if variable is not None:
        monkeypatch.setenv("HEADWAY_DEBUG", variable)
    assert is_debug(argument) is result


@pytest.fixture
def run_ranks(tmp_path):
    """Run the cases at the same time, since they mostly wait; yield what the ranks that print something saw."""
    with ForkedScripts(tmp_path) as scripts:

        def run(cases: list[Case]) -> Iterator[dict[int, dict]]:
            for number, case in enumerate(cases):
                for rank in range(NUM_RANKS):
                    scripts.start(SCRIPT, str(tmp_path / f"store-{number}"), str(rank), str(NUM_RANKS), *case)
            for number, (_, _, fate) in enumerate(cases):
                first = number * NUM_RANKS
                ranks = range(NUM_RANKS) if fate == "resumes" else OTHERS
                outputs = scripts.outputs([first + rank for rank in ranks], timeout_s=60)
                yield {index - first: json.loads(text) for index, text in outputs.items()}

        yield run


def test_all_others_name_a_rank_that_dies(run_ranks):
    cases = [("all_reduce", "ring"), ("all_reduce", "native"), ("all_gather", "bruck"), ("broadcast and sum", "tree")]
    for seen in run_ranks([(*case, "dies") for case in [*cases, ("control_round", "none")]]):
        for saw in seen.values():
            assert saw["lost"] == saw["again"] == [1]
            assert saw["message"].startswith("lost rank 1 (in ")


def test_all_others_name_a_rank_that_stops_and_one_that_goes_on_is_told(run_ranks):
    cases = [("all_reduce", "native"), ("broadcast and sum", "one_shot"), ("control_round", "none")]
    *stopped, resumed = run_ranks([*((*case, "stops") for case in cases), ("all_reduce", "two_shot", "resumes")])
    given_up = resumed.pop(1)
    for seen in [*stopped, resumed]:
        for saw in seen.values():
            assert saw["lost"] == saw["again"] == [1]
            assert saw["message"].startswith(f"no answer from rank 1 within {TIMEOUT_S:g} s")
            assert saw["seconds"] >= TIMEOUT_S
    assert given_up["lost"] == []
    assert given_up["message"].startswith("the other ranks have given up waiting for this one")


def test_neither_a_busy_rank_nor_one_that_once_came_late_is_named(run_ranks):
    """Notices of a call that succeeded in the end are forgotten."""
    busy, scare = "dies while one is busy", "dies after a scare"
    cases = [("all_reduce", "ring", busy), ("all_reduce", "native", busy), ("all_reduce", "ring", scare)]
    for seen in run_ranks(cases):
        assert [saw["lost"] for saw in seen.values()] == [[1]] * 3
