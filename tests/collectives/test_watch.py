"""Watches on wires in memory: ranks that wait in different calls name the same missing ranks. Time is an argument."""

from __future__ import annotations

import logging

import pytest

from headway.collectives.heartbeats import Heartbeats
from headway.collectives.watch import Call, Watch
from headway.collectives.wire import BrokenWire
from tests.collectives.posted import Post, PostedWire

NUM_RANKS = 4
STOPPED = 1
ALIVE = [0, 2, 3]
EVERYONE = frozenset(range(NUM_RANKS))
TIMEOUT_S, PATIENCE_S = 8.0, PostedWire.patience_s
TIMED_OUT = BrokenWire(None, timed_out=True, cause="Timed out")


class Ranks:
    """The watches of all ranks that are alive, on one clock."""

    def __init__(self, post: Post, ranks: list[int], timeout_s: float = TIMEOUT_S) -> None:
        self.post, self.now = post, 0.0
        self.heartbeats = {rank: Heartbeats(PostedWire(post, rank), rank, NUM_RANKS) for rank in ranks}
        self.watch = {
            rank: Watch(PostedWire(post, rank), each, timeout_s, [10, 11, 12, 13])
            for rank, each in self.heartbeats.items()
        }

    def begin(self, rank: int, *waited_for: int, number: int = 7, among: frozenset[int] = EVERYONE) -> None:
        self.watch[rank].begin(Call(number, "a sum", among, lambda: frozenset(waited_for), begun=self.now))

    def run_until(self, time_s: float) -> None:
        while self.now < time_s:
            self.now += 0.5
            for each in self.heartbeats.values():
                each.poll(self.now)

    def missing(self, broken: BrokenWire, waited_for: int) -> list[set[int]]:
        return [set(watch.find_missing(broken, [waited_for])) for watch in self.watch.values()]


@pytest.fixture
def ranks(monkeypatch):
    monkeypatch.setattr(Heartbeats, "_beat", lambda self: None)
    monkeypatch.setattr("headway.collectives.watch.GRACE_S", 0.05)
    return lambda post, which=ALIVE, **options: Ranks(post, which, **options)


def closed_by(peer: int) -> BrokenWire:
    return BrokenWire(peer, timed_out=False, cause="Connection closed by peer")


def test_a_silent_rank_is_lost_after_the_timeout_and_all_ranks_close_their_connections(ranks):
    """Only rank 2 waits for the silent rank; the others wait for each other."""
    there = ranks(Post(STOPPED))
    for rank, waited_for in ((2, STOPPED), (3, 2), (0, 3)):
        there.begin(rank, waited_for)
    there.run_until(TIMEOUT_S)
    assert there.post.closed == set()
    there.run_until(TIMEOUT_S + 4)
    assert there.post.closed == set(ALIVE)
    assert there.missing(closed_by(3), 3) == [{STOPPED}] * 3
    assert [watch.silent_for_s for watch in there.watch.values()] == [TIMEOUT_S] * 3


def test_ranks_that_are_lost_together_are_named_together(ranks):
    """Rank 0 waits for one of the two silent ranks."""
    there = ranks(Post(STOPPED, 2), [0, 3])
    there.begin(0, STOPPED)
    there.begin(3, 0)
    there.run_until(TIMEOUT_S + 4)
    assert there.missing(closed_by(0), 0) == [{STOPPED, 2}] * 2


@pytest.mark.parametrize(("timeout_s", "lost_at_s"), [(TIMEOUT_S, 10.0), (2.0, 3.5)])
def test_a_rank_that_is_slow_to_answer_is_not_lost_with_one_that_is(ranks, timeout_s, lost_at_s):
    """Rank 2 owes an answer when rank 1 is lost, and gives it within 2 s."""
    there = ranks(Post(STOPPED), timeout_s=timeout_s)
    for rank, waited_for in ((0, STOPPED), (2, 3), (3, 2)):
        there.begin(rank, waited_for)
    slow = there.heartbeats.pop(2)
    there.run_until(lost_at_s + 1.5)
    assert there.heartbeats[0].silence_s(STOPPED, lost_at_s) > timeout_s
    assert there.watch[0]._suspects.keys() == {2}
    assert there.post.closed == set()
    there.heartbeats = {2: slow, **there.heartbeats}
    there.run_until(lost_at_s + 2)
    assert there.watch[0]._lost == {STOPPED}
    there.run_until(lost_at_s + 3)
    assert there.missing(closed_by(0), 0) == [{STOPPED}] * 3


def test_a_rank_that_answers_at_the_last_moment_is_not_lost(ranks):
    """Rank 1 answers while rank 2, which owes an answer too, has time to do so."""
    there = ranks(Post(2), [0, 1, 3])
    there.begin(0, STOPPED)
    slow = there.heartbeats.pop(STOPPED)
    there.run_until(10.0)
    assert there.watch[0]._suspects == {2: 4.0}
    there.heartbeats = {STOPPED: slow, **there.heartbeats}
    there.run_until(PATIENCE_S - 1)
    assert there.post.closed == set()


def test_a_rank_that_answers_is_waited_for_and_logged_at_growing_intervals(ranks, caplog):
    there = ranks(Post(), [0, 1, 2, 3])
    there.begin(0, 1, 2)
    there.begin(2, 1)
    with caplog.at_level(logging.WARNING, "headway"):
        there.run_until(PATIENCE_S - 1)
    assert there.post.closed == set()
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("rank 10")]
    assert [line.split(" s for")[0] for line in lines] == [f"rank 10 has waited {time_s}" for time_s in (10, 30, 90)]
    assert lines[0].endswith("for rank 11 in a sum: alive, but busy elsewhere; given up after 100 s")


def test_a_message_that_arrives_is_progress(ranks):
    """The silent rank's message is under way all the time: it is not lost before the wait for one is too long."""
    there = ranks(Post(STOPPED))
    there.begin(0, STOPPED)
    there.run_until(TIMEOUT_S - 1)
    there.watch[0]._wire.waiting_since = there.now
    there.run_until(2 * TIMEOUT_S - 2)
    assert there.post.closed == set()
    there.run_until(2 * TIMEOUT_S)
    assert there.post.closed == {0}


def test_a_closed_connection_is_noticed_at_once_where_nobody_waits_on_it(ranks):
    """As in a collective of torch's own, which may wait for any rank."""
    there = ranks(Post(STOPPED))
    there.post.gone.add(STOPPED)
    for rank in ALIVE:
        there.begin(rank, *(EVERYONE - {rank}))
    there.run_until(2.0)
    assert there.post.closed == set(ALIVE)
    assert there.missing(BrokenWire(None, timed_out=False, cause="pair closure"), 0) == [{STOPPED}] * 3
    assert there.watch[0].silent_for_s is None


def test_a_rank_that_leaves_is_named_at_once(ranks):
    there = ranks(Post(), [0, 1, 2, 3])
    for rank, waited_for in ((2, STOPPED), (3, 2), (0, 3)):
        there.begin(rank, waited_for)
    there.watch[STOPPED].leave()
    there.run_until(0.5)
    assert there.post.closed == EVERYONE
    del there.watch[STOPPED]
    assert there.missing(closed_by(STOPPED), 3) == [{STOPPED}] * 3


def test_a_rank_that_takes_no_part_may_leave(ranks):
    there = ranks(Post(), [0, 1, 2, 3])
    for rank, waited_for in ((2, 3), (3, 2)):
        there.begin(rank, waited_for, among=frozenset([2, 3]))
    there.watch[STOPPED].leave()
    there.run_until(5.0)
    assert there.post.closed == {STOPPED}


def test_a_rank_that_gave_up_for_a_reason_is_not_named_by_those_that_lose_it(ranks):
    """Rank 2 finds rank 1 lost and closes its connections; rank 3 sees that before it gets the notice."""
    there = ranks(Post(STOPPED))
    there.begin(2, STOPPED)
    there.begin(3, 2)
    there.post.gone.add(STOPPED)
    assert there.watch[2].find_missing(closed_by(STOPPED), [STOPPED]) == {STOPPED}
    assert there.watch[3].find_missing(closed_by(2), [2]) == {STOPPED}


@pytest.mark.parametrize("calls_ahead", [1, 2])
@pytest.mark.parametrize("notices_first", [True, False])
def test_a_rank_that_is_ahead_respects_notices_of_those_behind(ranks, calls_ahead, notices_first):
    """The root of broadcasts has sent them and waits for rank 3, which waits in an earlier call, as rank 2 does."""
    there = ranks(Post())
    if not notices_first:
        there.begin(0, 3, number=7 + calls_ahead)
    for rank in (2, 3):
        there.begin(rank, STOPPED)
    there.heartbeats[STOPPED] = Heartbeats(PostedWire(there.post, STOPPED), STOPPED, NUM_RANKS)  # alive, but busy
    there.run_until(PATIENCE_S + 1)
    if notices_first:
        there.begin(0, 3, number=7 + calls_ahead)
    assert there.watch[0].find_missing(TIMED_OUT, [3]) == {STOPPED}
    for rank in (2, 3):
        assert there.watch[rank].find_missing(TIMED_OUT, [STOPPED]) == {STOPPED}


def test_a_notice_about_an_old_call_is_forgotten(ranks):
    """Rank 2 sent a notice in an earlier call; that does not prove it alive now that rank 0 waits for it."""
    there = ranks(Post())
    there.heartbeats[STOPPED] = Heartbeats(PostedWire(there.post, STOPPED), STOPPED, NUM_RANKS)
    there.begin(2, STOPPED)
    there.run_until(PATIENCE_S + 1)
    there.begin(0, 2, number=10)
    assert there.watch[0].find_missing(TIMED_OUT, [2]) == {2}
