"""Who is missing? Ranks that wait in vain tell each other, and all of them name the same culprit.

A rank that loses its connection to a peer, or is past its deadline, sends everybody a *notice*: whom it waits for.
A rank that gets one while it waits itself answers with its own. Missing are all that are waited for, less those who
gave notice: these are alive, and wait like oneself. A rank that is busy elsewhere does not answer, and is rightly
missed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from headway.collectives.lane import NOTICE_LANE, tag
from headway.collectives.wire import GRACE_S, BrokenWire, Pending, Wire

_TICK_S = 0.1
_NOTICE_TAG = tag(NOTICE_LANE, 1)
_WAITED_FOR, _GONE = 1, 2


@dataclass(frozen=True)
class Call:
    """A collective that runs: until when, and whom it waits for now."""

    deadline: float
    waited_for: Callable[[], frozenset[int]]


class Watch:
    """Keeps a receive for a notice posted from every peer, and a thread that gives notice when a call is late.

    Args:
        wire: What carries the notices.
        rank: This rank.
        num_ranks: The size of the group.
    """

    def __init__(self, wire: Wire, rank: int, num_ranks: int) -> None:
        self._wire = wire
        self._rank = rank
        self._peers = [peer for peer in range(num_ranks) if peer != rank]
        # A row a peer: one byte that says the notice is there, and what it says of each rank (WAITED_FOR, GONE).
        self._notices = torch.zeros(num_ranks, num_ranks + 1, dtype=torch.uint8)
        self._coming = [wire.receive(self._notices[peer], peer, _NOTICE_TAG) for peer in self._peers]
        self._leaving: list[Pending] = []
        self._call: Call | None = None
        self._given = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep_watch, name="headway-watch", daemon=True)
        self._thread.start()

    def begin(self, call: Call) -> None:
        """Watch a call."""
        self._call = call

    def end(self) -> None:
        """Stop watching it: it is over."""
        self._call = None

    def find_missing(self, broken: BrokenWire, waited_for: Iterable[int]) -> frozenset[int]:
        """Return who is missing, once a wait has failed; then close all connections, so that nobody waits for us.

        An empty set says that all others are there, and that it is this rank they did without.
        """
        gone = frozenset() if broken.peer is None or broken.timed_out else frozenset([broken.peer])
        own = gone or frozenset(waited_for)
        if not broken.timed_out:
            self._give_notice(waited_for=own, gone=gone)
            self._wait_for_notices(gone)
        self._wire.close(peer for peer in self._peers if peer not in gone)
        missed = own | self._said_to_be(_WAITED_FOR)
        missing = missed - self._who_gave_notice() - {self._rank}
        came_late = self._rank in missed and not broken.timed_out
        return missing if missing or came_late else own

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._thread.join()

    def _keep_watch(self) -> None:
        while not self._closing.wait(_TICK_S):
            call = self._call
            if call is not None and (time.monotonic() > call.deadline or self._who_gave_notice()):
                self._give_notice(waited_for=call.waited_for(), gone=frozenset())

    def _give_notice(self, *, waited_for: frozenset[int], gone: frozenset[int]) -> None:
        """Tell everybody, once."""
        if not self._given.acquire(blocking=False):
            return
        notice = torch.zeros(self._notices.shape[1], dtype=torch.uint8)
        notice[0] = 1
        notice[[1 + peer for peer in waited_for]] = _WAITED_FOR
        notice[[1 + peer for peer in gone]] = _GONE
        for peer in self._peers:
            try:
                self._leaving.append(self._wire.send(notice, peer, _NOTICE_TAG))
            except BrokenWire:
                continue  # the one that is gone, or another

    def _wait_for_notices(self, gone: frozenset[int]) -> None:
        """Give time to answer to all but those that somebody knows to be gone; who is not in a call will not."""
        end = time.monotonic() + GRACE_S
        while time.monotonic() < end:
            if frozenset(self._peers) <= self._who_gave_notice() | self._said_to_be(_GONE) | gone:
                return
            time.sleep(_TICK_S / 10)

    def _who_gave_notice(self) -> frozenset[int]:
        return frozenset(torch.nonzero(self._notices[:, 0]).flatten().tolist())

    def _said_to_be(self, state: int) -> frozenset[int]:
        """Return the ranks that anybody's notice says this of, or worse."""
        return frozenset(torch.nonzero(self._notices[:, 1:].amax(dim=0) >= state).flatten().tolist())
