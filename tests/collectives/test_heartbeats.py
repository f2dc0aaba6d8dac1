"""Heartbeats on wires in memory: their thread is stopped, and tests call what it does."""

from __future__ import annotations

import math
import time

import pytest

from headway.collectives import heartbeats as module
from headway.collectives.heartbeats import Heartbeats
from tests.collectives.posted import Post, PostedWire

NUM_RANKS = 3
SILENT = 2


@pytest.fixture
def make(monkeypatch):
    """Make the heartbeats of a rank, without a thread."""
    monkeypatch.setattr(Heartbeats, "_beat", lambda self: None)
    return lambda post, rank: Heartbeats(PostedWire(post, rank), rank, NUM_RANKS)


def test_a_rank_answers_whatever_its_script_does_and_says_which_channels_wait(make):
    post = Post()
    asking, answering = make(post, 0), make(post, 1)
    answering.open_channel(lambda now: None, lambda: False)
    answering.open_channel(lambda now: None, lambda: True)
    assert asking.is_waiting(1, channel=0) is None
    asking.ask([1], 1.0, now=10.0)
    assert asking.silence_s(1, now=13.0) == 3.0
    answering.poll(now=13.0)
    asking.poll(now=13.0)
    assert asking.silence_s(1, now=14.0) == 0.0
    assert [asking.is_waiting(1, channel) for channel in (0, 1)] == [False, True]


def test_questions_are_few(make):
    """One is open at a time, and one that has answered is left alone for a while."""
    post = Post()
    asking, answering = make(post, 0), make(post, 1)
    for now in (10.0, 11.0, 12.0):
        asking.ask([1], 5.0, now)
    assert len(post.sent) == 1
    answering.poll(13.0)
    asking.poll(13.0)
    asking.ask([1], 5.0, now=17.0)
    assert len(post.sent) == 2  # with the answer
    asking.ask([1], 5.0, now=18.1)
    assert len(post.sent) == 3


def test_a_silent_rank_and_a_closed_connection_are_different_things(make):
    post = Post(SILENT)
    asking = make(post, 0)
    post.gone.add(1)
    asking.ask([1, SILENT], 1.0, now=10.0)
    asking.poll(now=12.0)
    assert asking.silence_s(SILENT, now=12.0) == 2.0
    assert asking.silence_s(1, now=12.0) == math.inf
    assert [asking.is_connected(peer) for peer in (1, SILENT)] == [False, True]


def test_time_in_which_this_rank_could_not_listen_does_not_count(make):
    asking = make(Post(SILENT), 0)
    asking.ask([SILENT], 1.0, now=10.0)
    asking.discount_stall(60.0)
    assert asking.silence_s(SILENT, now=71.0) == 1.0
    asking.discount_stall(0.1)  # a tick that is a little late
    assert asking.silence_s(SILENT, now=71.0) == 1.0


def test_a_channel_ticks_until_it_is_closed_and_no_more_than_fit_are_given(make):
    asking = make(Post(), 0)
    ticks: list[float] = []
    channels = [asking.open_channel(ticks.append, lambda: False) for _ in range(module.MOST_CHANNELS)]
    assert channels == list(range(module.MOST_CHANNELS))
    with pytest.raises(ValueError, match="share these heartbeats already"):
        asking.open_channel(ticks.append, lambda: False)
    asking.close_channel(0)
    asking.poll(now=5.0)
    assert ticks == [5.0] * (module.MOST_CHANNELS - 1)


def test_whatever_fails_in_one_channel_the_others_tick_and_peers_get_answers(make, caplog):
    post = Post()
    asking, answering = make(post, 0), make(post, 1)
    ticks: list[float] = []
    answering.open_channel(fail, lambda: False)
    answering.open_channel(ticks.append, lambda: True)
    for now in (10.0, 20.0, 30.0):
        asking.ask([1], 1.0, now)
        answering.poll(now)
        asking.poll(now)
        assert asking.silence_s(1, now + 5) == 0.0
    assert ticks == [10.0, 20.0, 30.0]
    assert [record.exc_info[0] for record in caplog.records] == [ZeroDivisionError]


def test_a_rank_that_cannot_answer_still_asks_and_ticks(make, caplog):
    """What tells peers whether it waits is broken."""
    post = Post()
    asking, answering = make(post, 0), make(post, 1)
    ticks: list[float] = []
    answering.open_channel(ticks.append, lambda: 1 / 0)
    asking.ask([1], 1.0, now=10.0)
    answering.poll(now=10.0)
    assert ticks == [10.0]
    assert len(caplog.records) == 1


def fail(_: float) -> None:
    raise ZeroDivisionError


def test_no_connection_is_idle_for_long(make):
    post = Post()
    asking, answering = make(post, 0), make(post, 1)
    start = time.monotonic()
    for minute in range(1, 121):
        now = start + 61.0 * minute
        for each in (asking, answering, asking, answering):
            each.poll(now)
        assert asking.silence_s(1, now + 30) == answering.silence_s(0, now + 30) == 0.0
    for route in ((0, 1), (1, 0)):
        assert post.sent.count((*route, module._QUESTION_TAG)) == 120


def test_the_thread_beats_until_it_is_closed():
    post = Post()
    beating = Heartbeats(PostedWire(post, 0), 0, NUM_RANKS)
    ticks: list[float] = []
    beating.open_channel(ticks.append, lambda: False)
    end = time.monotonic() + 20
    while not ticks:
        assert time.monotonic() < end
        time.sleep(0.01)
    beating.close()
    assert not beating._thread.is_alive()
    assert post.closed == {0}
