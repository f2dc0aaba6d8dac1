"""Who is missing? Ranks that wait in vain tell each other, so that all of them name the same lost ranks.

A rank that loses its connection to a peer, or is past its deadline, sends every other rank a *notice*: which ranks it
waits for. A rank that gets one while it waits itself answers with its own. Missing are all ranks that are waited for,
except those that sent a notice: these are alive, and wait too. A rank that is busy elsewhere does not answer, and
rightly counts as missing.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.collectives.lanes import SERVICE_LANE, tag
from headway.collectives.wire import GRACE_S, BrokenWire, Pending, Wire

_TICK_S = 0.1
_NOTICE_TAG = tag(SERVICE_LANE, 1)
_WAITED_FOR, _GONE = 1, 2
_CALLS_APART = 2
"""How many calls a rank may be ahead of one that waits: the root of a broadcast is done when it has sent."""


@dataclass(frozen=True)
class Call:
    """A running collective: its number (from 1), its deadline, and a function that returns the ranks it waits for."""

    number: int
    deadline: float
    waited_for: Callable[[], frozenset[int]]


class Watch:
    """Keeps a receive for a notice posted from every peer, and a thread that sends notices when a call is late.

    Args:
        wire: Carries the notices.
        rank: This rank.
        num_ranks: The size of the group.
    """

    def __init__(self, wire: Wire, rank: int, num_ranks: int) -> None:
        self._wire = wire
        self._rank = rank
        self._peers = [peer for peer in range(num_ranks) if peer != rank]
        # One row per peer: what its notice says of each rank (_WAITED_FOR, _GONE), then the number of its call.
        self._notices = torch.zeros(num_ranks, num_ranks + 1, dtype=torch.int64)
        self._receives: dict[int, Pending] = {}
        self._sends: list[Pending] = []
        self._call = Call(0, math.inf, frozenset)
        self._is_waiting = False
        self._last_notice = 0
        """The number of the call that the last notice was about."""
        self._unreachable: frozenset[int] = frozenset()
        self._sending = threading.Lock()
        self._closing = threading.Event()
        self._post()
        self._thread = threading.Thread(target=self._keep_watch, name="headway-watch", daemon=True)
        self._thread.start()

    def begin(self, call: Call) -> None:
        """Watch a call; forget notices about earlier calls, which succeeded in the end."""
        self._call = call
        if bool(self._notices[:, -1].any()):
            self._post()
        self._is_waiting = True

    def end(self) -> None:
        """Stop watching the call."""
        self._is_waiting = False

    def find_missing(self, broken: BrokenWire, waited_for: Iterable[int]) -> frozenset[int]:
        """Return the missing ranks after a wait has failed; then close all connections, so that no rank waits for us.

        An empty set means that all other ranks are there, and have given up on this one.
        """
        gone = frozenset() if broken.peer is None or broken.timed_out else frozenset([broken.peer])
        if not broken.timed_out:
            self._send_notice(waited_for=gone or frozenset(waited_for), gone=gone)
            gone |= self._unreachable
            self._wait_for_notices(gone)
        self._wire.close(peer for peer in self._peers if peer not in gone)
        alive = self._notifiers()
        known = (gone | self._reported_as(_GONE)) - alive - {self._rank}
        if known:
            return known
        own = gone or frozenset(waited_for)
        missed = own | self._reported_as(_WAITED_FOR)
        came_late = self._rank in missed and not broken.timed_out
        missing = missed - alive - {self._rank}
        return missing if missing or came_late else own

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._thread.join()

    def _keep_watch(self) -> None:
        while not self._closing.wait(_TICK_S):
            call = self._call
            is_asked = bool((self._notices[:, -1] >= max(call.number, 1)).any())
            if self._is_waiting and (is_asked or time.monotonic() > call.deadline):
                self._send_notice(waited_for=call.waited_for(), gone=frozenset())

    def _post(self) -> None:
        """Post a receive for a notice from every peer, except those whose notice is about this call."""
        for peer in self._peers:
            number = int(self._notices[peer, -1])
            if peer in self._receives and (number == 0 or number >= self._call.number - _CALLS_APART):
                continue
            self._notices[peer] = 0
            with contextlib.suppress(BrokenWire):  # a peer that is gone is noticed when it is needed
                self._receives[peer] = self._wire.receive(self._notices[peer], peer, _NOTICE_TAG)

    def _send_notice(self, *, waited_for: frozenset[int], gone: frozenset[int]) -> None:
        """Send a notice to all peers, once per call, and remember which of them cannot be reached."""
        with self._sending:
            if self._last_notice == self._call.number:
                return
            self._last_notice = self._call.number
        notice = torch.zeros(self._notices.shape[1], dtype=torch.int64)
        notice[-1] = self._call.number
        notice[list(waited_for)] = _WAITED_FOR
        notice[list(gone)] = _GONE
        for peer in self._peers:
            try:
                self._sends.append(self._wire.send(self._wire.as_bytes(notice), peer, _NOTICE_TAG))
            except BrokenWire:
                self._unreachable |= {peer}

    def _wait_for_notices(self, gone: frozenset[int]) -> None:
        """Give all ranks that are not known to be gone time to answer; a rank outside of a call will not."""
        end = time.monotonic() + GRACE_S
        while time.monotonic() < end:
            if frozenset(self._peers) <= self._notifiers() | self._reported_as(_GONE) | gone:
                return
            time.sleep(_TICK_S / 10)

    def _current(self) -> Tensor:
        """Return which notices are about the current call, or one near it: peers may be behind or ahead."""
        return self._notices[:, -1] >= max(self._call.number - _CALLS_APART, 1)

    def _notifiers(self) -> frozenset[int]:
        return frozenset(torch.nonzero(self._current()).flatten().tolist())

    def _reported_as(self, state: int) -> frozenset[int]:
        """Return the ranks of which any notice says this, or worse."""
        states = self._notices[self._current(), :-1]
        return frozenset(torch.nonzero((states >= state).any(dim=0)).flatten().tolist())
