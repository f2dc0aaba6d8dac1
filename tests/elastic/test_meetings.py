"""Ranks agree on who goes on, whoever comes late, leads or is lost meanwhile."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from headway import HeadwayError, PeerLost
from headway.collectives import Members
from headway.elastic import Meetings, meetings

TIMEOUT_S = 0.5


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(meetings, "_GRACE_S", 0.1)


def members_of(store, rank, num_ranks, patience_s=10.0):
    names = tuple(range(num_ranks))
    return Members(rank=rank, names=names, store=store, patience_s=patience_s, connecting_s=1.0)


def at_once(*calls):
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def run_of(num_ranks):
    store = dist.HashStore()
    return store, [Meetings(members_of(store, rank, num_ranks), TIMEOUT_S) for rank in range(num_ranks)]


def names_and_places(found):
    return [(meeting.members.names, meeting.members.rank) for meeting in found]


def test_those_who_come_go_on():
    _, ranks = run_of(4)
    found = at_once(*(lambda each=each: each.meet({1}) for each in (ranks[0], ranks[2], ranks[3])))
    assert names_and_places(found) == [((0, 2, 3), place) for place in range(3)]
    assert all(meeting.guests == () for meeting in found)


def test_a_rank_that_is_said_to_be_lost_but_comes_soon_takes_part():
    _, ranks = run_of(3)
    found = at_once(*(lambda each=each: each.meet({0}) for each in ranks))
    assert [meeting.members.names for meeting in found] == [(0, 1, 2)] * 3


def test_one_that_comes_too_late_asks_and_is_let_in_at_the_next_meeting():
    _, ranks = run_of(3)
    found = at_once(*(lambda each=each: each.meet({2}) for each in ranks[:2]))
    assert [meeting.members.names for meeting in found] == [(0, 1)] * 2
    assert not ranks[0].has_guests()
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(ranks[2].meet)
        while not ranks[0].has_guests():
            time.sleep(0.01)
        found = [*at_once(*(each.meet for each in ranks[:2])), late.result()]
    assert names_and_places(found) == [((0, 1, 2), place) for place in range(3)]
    assert all(meeting.guests == (2,) for meeting in found)
    assert not ranks[0].has_guests()


def in_another_process(monkeypatch, make):
    with monkeypatch.context() as patch:
        patch.setattr(meetings, "_name_of_process", lambda _: "another process")
        return make()


def test_a_second_process_of_a_rank_knows_that_it_is_one(monkeypatch):
    store, ranks = run_of(2)
    assert not any(each.is_back for each in ranks)
    assert in_another_process(monkeypatch, lambda: Meetings(members_of(store, 1, 2), TIMEOUT_S)).is_back


def test_a_second_run_of_the_same_processes_is_another_one(monkeypatch):
    store = dist.HashStore()
    members = [members_of(store, rank, 2) for rank in range(2)]
    for _ in range(2):
        ranks = [Meetings(each, TIMEOUT_S) for each in members]
        assert not any(each.is_back for each in ranks)
        assert [meeting.members.names for meeting in at_once(*(each.meet for each in ranks))] == [(0, 1)] * 2
    again = in_another_process(monkeypatch, lambda: Meetings(members_of(store, 1, 2), TIMEOUT_S))
    with ThreadPoolExecutor(1) as pool:
        back = pool.submit(again.ask)
        while not ranks[0].has_guests():
            time.sleep(0.01)
        assert ranks[0].meet({1}).guests == (1,)
        assert back.result().members.names == (0, 1)


def test_one_that_is_back_before_it_was_missed_takes_the_place_of_its_first_process(monkeypatch):
    store, ranks = run_of(3)
    again = in_another_process(monkeypatch, lambda: Meetings(members_of(store, 1, 3), TIMEOUT_S))
    with ThreadPoolExecutor(1) as pool:
        back = pool.submit(again.ask)
        while not ranks[0].has_guests():
            time.sleep(0.01)
        found = at_once(*(lambda each=each: each.meet({0}) for each in (ranks[0], ranks[2])))
        assert back.result().members.names == (0, 1, 2)
    assert [meeting.guests for meeting in found] == [(1,)] * 2


def test_a_meeting_whose_chair_is_lost_is_held_again():
    _, ranks = run_of(3)
    ranks[1]._store.compare_set("1/chair", "", "0")  # the first to come, and then killed
    found = at_once(*(lambda each=each: each.meet({0}) for each in ranks[1:]))
    assert [meeting.members.names for meeting in found] == [(1, 2)] * 2


def test_every_meeting_has_a_place_of_its_own_in_the_store():
    _, ranks = run_of(2)
    for number in range(2):
        first, second = at_once(*(each.meet for each in ranks))
        first.members.store.set("key", str(number))
        assert second.members.store.get("key") == str(number).encode()


def test_asking_in_vain_ends():
    store = dist.HashStore()
    alone = Meetings(members_of(store, 0, 2, patience_s=0.2), TIMEOUT_S)
    with pytest.raises(PeerLost, match=r"no answer from rank 1 within 0.2 s.*asking to be let into the run"):
        alone.ask()


def test_without_a_store_it_says_what_is_missing():
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    rank = Meetings(members_of(server, 0, 2), TIMEOUT_S)
    del server
    with pytest.raises(HeadwayError, match="the store that ranks meet at is gone"):
        rank.meet()


def test_many_meetings_in_a_row_agree_whoever_is_first():
    _, ranks = run_of(4)
    for number in range(20):
        begun = threading.Barrier(4)

        def come(each, begun=begun, pause_s=0.002 * number):
            begun.wait()
            time.sleep(pause_s * (ranks.index(each) % 2))
            return each.meet()

        assert [meeting.members.names for meeting in at_once(*(lambda each=each: come(each) for each in ranks))] == [
            (0, 1, 2, 3)
        ] * 4
