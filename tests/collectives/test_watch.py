"""Watches on simulated wires: ranks that wait in different calls name the same missing rank."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest
import torch

from headway.collectives.watch import Call, Watch
from headway.collectives.wire import BrokenWire

NUM_RANKS = 4
STOPPED = 1
ALIVE = [0, 2, 3]
PAST = -math.inf


class Post:
    """Carries messages between the wires of all ranks, and records sender and receiver."""

    def __init__(self) -> None:
        self.waiting: dict[tuple[int, int], torch.Tensor] = {}
        self.sent: list[tuple[int, int]] = []


class PostedWire:
    """The wire of one rank."""

    def __init__(self, post: Post, rank: int) -> None:
        self._post, self._rank = post, rank

    @staticmethod
    def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(torch.uint8)

    def receive(self, target, peer, tag):
        self._post.waiting[peer, self._rank] = self.as_bytes(target)

    def send(self, payload, peer, tag):
        if peer != STOPPED:
            self._post.waiting.pop((self._rank, peer)).copy_(payload)
        self._post.sent.append((self._rank, peer))

    def close(self, peers):
        pass


@contextmanager
def watches(post: Post) -> Iterator[dict[int, Watch]]:
    with ExitStack() as stack:
        yield {rank: stack.enter_context(closing(Watch(PostedWire(post, rank), rank, NUM_RANKS))) for rank in ALIVE}


def wait_for_notices(post: Post, num_ranks: int) -> None:
    """Wait until this many ranks have sent notices to all others."""
    end = time.monotonic() + 20
    while len(post.sent) < num_ranks * (NUM_RANKS - 1):
        assert time.monotonic() < end, f"no more notices were sent than {post.sent}"
        time.sleep(0.001)


def call_of(number: int, waited_for: int, deadline: float = PAST) -> Call:
    return Call(number, deadline, lambda: frozenset([waited_for]))


TIMED_OUT = BrokenWire(None, timed_out=True, cause="Timed out")


@pytest.mark.parametrize("calls_ahead", [1, 2])
@pytest.mark.parametrize("notices_first", [True, False])
def test_a_rank_that_is_ahead_respects_notices_of_those_behind(calls_ahead, notices_first):
    """The root of broadcasts has sent them and waits for rank 3, which waits in an earlier call, as rank 2 does."""
    post = Post()
    with watches(post) as watch:
        if not notices_first:
            watch[0].begin(call_of(7 + calls_ahead, waited_for=3, deadline=math.inf))
        for rank in (2, 3):
            watch[rank].begin(call_of(7, waited_for=STOPPED))
        wait_for_notices(post, 2)
        if notices_first:
            watch[0].begin(call_of(7 + calls_ahead, waited_for=3, deadline=math.inf))
        assert watch[0].find_missing(TIMED_OUT, [3]) == {STOPPED}
        for rank in (2, 3):
            assert watch[rank].find_missing(TIMED_OUT, [STOPPED]) == {STOPPED}


def test_a_notice_about_an_old_call_is_forgotten():
    """Rank 2 sent a notice in an earlier call; that does not prove it alive now that rank 0 waits for it."""
    post = Post()
    with watches(post) as watch:
        watch[2].begin(call_of(7, waited_for=STOPPED))
        wait_for_notices(post, 1)
        watch[0].begin(call_of(10, waited_for=2, deadline=math.inf))
        assert watch[0].find_missing(TIMED_OUT, [2]) == {2}
