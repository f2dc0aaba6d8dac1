"""The one place where gossip waits in torch: messages in order, broken connections, threads that end."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import pytest
import torch

from headway.collectives.wire import BrokenWire, Pending
from headway.gossip import inbox as inbox_module
from headway.gossip.inbox import Inbox, MessageWire


class FakeWire:
    """Fills posted receives with the numbers that a test puts into ``arriving``, until it is closed."""

    def __init__(self, group: Any = None, patience_s: float = 0.0) -> None:
        self.arriving: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.num_posted = 0
        self.is_released = False

    def send(self, payload: torch.Tensor, peer: int, tag: int) -> Pending:
        raise BrokenWire(peer, timed_out=False, cause="connection closed")

    def receive(self, target: torch.Tensor, peer: int, tag: int) -> Pending:
        self.num_posted += 1
        return Pending(None, peer, target.view(torch.uint8))

    def wait(self, pending: Pending) -> None:
        number = self.arriving.get(timeout=30)
        if number is None:
            self.arriving.put(None)
            raise BrokenWire(pending.peer, timed_out=False, cause="connection closed")
        pending.tensor.fill_(number)

    def close(self, peers: Any) -> None:
        self.arriving.put(None)

    def release(self) -> None:
        self.is_released = True


def post(inbox: Inbox, num_buffers: int) -> None:
    for _ in range(num_buffers):
        inbox.post(torch.zeros(4, dtype=torch.uint8))


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_messages_come_in_order_and_callers_wait_no_longer_than_they_say():
    wire = FakeWire()
    inbox = Inbox(wire, peer=1, tag=7)
    post(inbox, 2)
    assert inbox.get(0) is None
    assert inbox.get(0.01) is None
    wire.arriving.put(5)
    wire.arriving.put(6)
    assert [inbox.get(30).tolist() for _ in range(2)] == [[5] * 4, [6] * 4]
    assert inbox.num_arrived == 2
    wire.close([1])
    inbox.close()
    inbox.join(30)


def test_a_broken_connection_is_reported_after_what_arrived_and_then_always():
    wire = FakeWire()
    inbox = Inbox(wire, peer=3, tag=7)
    post(inbox, 2)
    wire.arriving.put(5)
    wire.close([3])
    assert inbox.get(30).tolist() == [5] * 4
    for _ in range(2):
        with pytest.raises(BrokenWire) as broken:
            inbox.get(30)
        assert broken.value.peer == 3
    inbox.join(30)


def test_where_only_arrivals_count_buffers_are_posted_again():
    wire = FakeWire()
    inbox = Inbox(wire, peer=1, tag=2, keeps_arrivals=False)
    before = time.monotonic()
    post(inbox, 1)
    for number in range(3):
        wire.arriving.put(number)
    wait_until(lambda: wire.num_posted == 4)
    assert inbox.num_arrived == 3
    assert before <= inbox.last_arrival_s <= time.monotonic()
    assert inbox.get(0) is None
    wire.close([1])


def test_a_wire_that_is_cut_ends_its_own_threads_and_waits_for_no_other(monkeypatch):
    """Two optimizers in a process: one that is closed must not wait for the threads of the other."""
    monkeypatch.setattr(inbox_module, "Wire", FakeWire)
    ours, others = MessageWire(None, rank=0, num_ranks=3), MessageWire(None, rank=0, num_ranks=3)
    inboxes = [wire.open_inbox(peer, 2) for wire in (ours, others) for peer in (1, 2)]
    post(inboxes[0], 1)  # waits in torch; the second waits for a receive to be posted
    post(inboxes[2], 1)
    before = set(threading.enumerate())
    ours.cut()
    start = time.monotonic()
    ours.release(time.monotonic() + 30)
    assert time.monotonic() - start < 20
    ended = before - set(threading.enumerate())
    assert {thread.name for thread in ended} >= {"headway-inbox-1-2", "headway-inbox-2-2"}
    assert [inbox._thread.is_alive() for inbox in inboxes] == [False, False, True, True]
    assert ours.send(torch.zeros(1, dtype=torch.uint8), 1, 2) is None
    assert others.send(torch.zeros(1, dtype=torch.uint8), 1, 2) is None  # broken: the inbox reports it
    others.cut()
    others.release(time.monotonic() + 30)
