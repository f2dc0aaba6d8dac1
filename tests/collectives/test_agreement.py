"""Debug mode: ranks that are about to do different things are told apart before they do them."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from headway import MismatchError, PeerLost
from headway.collectives import Executor
from headway.collectives.agreement import wanted

pytestmark = pytest.mark.pool


def disagree(about: str) -> str:
    odd = dist.get_rank() == 1
    with Executor(timeout_s=20, debug=True) as executor:
        executor.all_reduce(torch.ones(3), "ring")
        try:
            if about == "collective" and odd:
                executor.all_gather(torch.ones(3), "ring")
            elif about == "graph":
                executor.neighbour_exchange(torch.ones(3), [[1], [0], []] if odd else [[1, 2], [0], [0]])
            elif about == "root":
                executor.broadcast(torch.ones(3), int(odd), "tree")
            else:
                numel = 4 if about == "size" and odd else 3
                dtype = torch.float16 if about == "dtype" and odd else torch.float32
                algorithm = "tree" if about == "algorithm" and odd else "ring"
                algorithm = "native" if about == "native" and odd else algorithm
                executor.all_reduce(torch.ones(numel, dtype=dtype), algorithm)
        except MismatchError as error:
            return str(error)
    return "nothing was noticed"


@pytest.mark.parametrize(
    ("about", "usual", "odd"),
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
def test_every_rank_is_shown_what_all_are_about_to_do(pool, about, usual, odd):
    for message in pool.run(disagree, about, num_ranks=3):
        head, *lines = message.splitlines()
        assert head == "ranks disagree about the next collective:"
        assert [line.split(":")[0] for line in lines] == ["  rank 0", "  rank 1", "  rank 2"]
        assert usual in lines[0]
        assert usual in lines[2]
        assert odd in lines[1]
        assert "call 2" in lines[0]


def agree() -> list[float]:
    with Executor(timeout_s=20, debug=True) as executor:
        return [executor.all_reduce(torch.ones(3), "ring")[0].item() for _ in range(5)]


def test_ranks_that_agree_go_on(pool):
    assert pool.run(agree, num_ranks=3) == [[3.0] * 5] * 3


def disagree_unnoticed() -> str:
    """Without debug mode ranks that disagree about a size never meet: no wrong sum, but a deadline."""
    with Executor(timeout_s=1, debug=False) as executor:
        try:
            executor.all_reduce(torch.ones(3 + dist.get_rank()), "ring")
        except PeerLost as error:
            return str(error)
    return "nothing was noticed"


def test_without_debug_mode_ranks_that_disagree_run_into_the_deadline(pool):
    for message in pool.run(disagree_unnoticed, num_ranks=2):
        assert message.startswith("no answer from rank")
        assert "HEADWAY_DEBUG=1 shows whether ranks disagree" in message


def silent_rank() -> tuple[int, ...]:
    with Executor(timeout_s=1, debug=True) as executor:
        if executor.rank == 2:
            time.sleep(4)
        try:
            executor.all_reduce(torch.ones(3), "ring")
        except PeerLost as error:
            return error.ranks
    return ()


def test_a_silent_rank_is_named_in_debug_mode_too(pool):
    assert pool.run(silent_rank, num_ranks=3)[:2] == [(2,), (2,)]


def half_debug() -> str:
    try:
        Executor(timeout_s=5, debug=dist.get_rank() == 0)
    except ValueError as error:
        return str(error)
    return "nothing was noticed"


def test_debug_mode_on_some_ranks_only_is_noticed_at_once(pool):
    assert (
        pool.run(half_debug, num_ranks=2)
        == ["debug mode is on for ranks [0] only: set HEADWAY_DEBUG or debug= alike on all ranks"] * 2
    )


@pytest.mark.parametrize(
    ("variable", "argument", "result"),
    [(None, None, False), ("1", None, True), ("0", None, False), ("1", False, False), (None, True, True)],
)
def test_the_argument_beats_the_variable(monkeypatch, variable, argument, result):
    monkeypatch.delenv("HEADWAY_DEBUG", raising=False)
    if variable is not None:
        monkeypatch.setenv("HEADWAY_DEBUG", variable)
    assert wanted(argument) is result
