"""Who is missing? Ranks that wait in vain tell each other, and all of them name the same culprit.

A rank that loses its connection to a peer, or is past its deadline, sends everybody a *notice*: whom it waits for.
A rank that gets one while it waits itself answers with its own. Missing are all that are waited for, less those who
gave notice: these are alive, and wait like oneself. A rank that is busy elsewhere does not answer, and is rightly
missed.
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

from headway.collectives.lane import SERVICE_LANE, tag
from headway.collectives.wire import GRACE_S, BrokenWire, Pending, Wire

_TICK_S = 0.1
_NOTICE_TAG = tag(SERVICE_LANE, 1)
_WAITED_FOR, _GONE = 1, 2
_CALLS_APART = 2
"""How many calls a rank may be ahead of one that waits: the root of a broadcast is done when it has sent."""


@dataclass(frozen=True)
class Call:
    """A collective that runs: the how manyth, until when, and whom it waits for now."""

    number: int
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
        # A row a peer: what its notice says of each rank (WAITED_FOR, GONE), and last the number of the call, from 1.
        self._notices = torch.zeros(num_ranks, num_ranks + 1, dtype=torch.int64)
        self._coming: dict[int, Pending] = {}
        self._leaving: list[Pending] = []
        self._call = Call(0, math.inf, frozenset)
        self._is_waiting = False
        self._noted = 0
        self._unreachable: frozenset[int] = frozenset()
        self._noting = threading.Lock()
        self._closing = threading.Event()
        self._post()
        self._thread = threading.Thread(target=self._keep_watch, name="headway-watch", daemon=True)
        self._thread.start()

    def begin(self, call: Call) -> None:
        """Watch a call; forget notices about calls before it, which went well in the end."""
        self._call = call
        if bool(self._notices[:, -1].any()):
            self._post()
        self._is_waiting = True

    def end(self) -> None:
        """Stop watching it: it is over."""
        self._is_waiting = False

    def find_missing(self, broken: BrokenWire, waited_for: Iterable[int]) -> frozenset[int]:
        """Return who is missing, once a wait has failed; then close all connections, so that nobody waits for us.

        An empty set says that all others are there, and that it is this rank they did without.
        """
        gone = frozenset() if broken.peer is None or broken.timed_out else frozenset([broken.peer])
        if not broken.timed_out:
            self._give_notice(waited_for=gone or frozenset(waited_for), gone=gone)
            gone |= self._unreachable
            self._wait_for_notices(gone)
        self._wire.close(peer for peer in self._peers if peer not in gone)
        alive = self._who_gave_notice()
        known = (gone | self._said_to_be(_GONE)) - alive - {self._rank}
        if known:
            return known
        own = gone or frozenset(waited_for)
        missed = own | self._said_to_be(_WAITED_FOR)
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
                self._give_notice(waited_for=call.waited_for(), gone=frozenset())

    def _post(self) -> None:
        """Make ready for a notice from every peer, but for those that have given one about this call."""
        for peer in self._peers:
            number = int(self._notices[peer, -1])
            if peer in self._coming and (number == 0 or number >= self._call.number - _CALLS_APART):
                continue
            self._notices[peer] = 0
            with contextlib.suppress(BrokenWire):  # a peer that is gone is found out when it is needed
                self._coming[peer] = self._wire.receive(self._notices[peer], peer, _NOTICE_TAG)

    def _give_notice(self, *, waited_for: frozenset[int], gone: frozenset[int]) -> None:
        """Tell everybody, once a call, and note to whom the connection turns out to be gone."""
        with self._noting:
            if self._noted == self._call.number:
                return
            self._noted = self._call.number
        notice = torch.zeros(self._notices.shape[1], dtype=torch.int64)
        notice[-1] = self._call.number
        notice[list(waited_for)] = _WAITED_FOR
        notice[list(gone)] = _GONE
        for peer in self._peers:
            try:
                self._leaving.append(self._wire.send(self._wire.as_bytes(notice), peer, _NOTICE_TAG))
            except BrokenWire:
                self._unreachable |= {peer}

    def _wait_for_notices(self, gone: frozenset[int]) -> None:
        """Give time to answer to all but those that somebody knows to be gone; who is not in a call will not."""
        end = time.monotonic() + GRACE_S
        while time.monotonic() < end:
            if frozenset(self._peers) <= self._who_gave_notice() | self._said_to_be(_GONE) | gone:
                return
            time.sleep(_TICK_S / 10)

    def _about_this_call(self) -> Tensor:
        """Return the rows of notices about the call that runs, or one near it: peers may be behind or ahead."""
        return self._notices[:, -1] >= max(self._call.number - _CALLS_APART, 1)

    def _who_gave_notice(self) -> frozenset[int]:
        return frozenset(torch.nonzero(self._about_this_call()).flatten().tolist())

    def _said_to_be(self, state: int) -> frozenset[int]:
        """Return the ranks that anybody's notice says this of, or worse."""
        said = self._notices[self._about_this_call(), :-1]
        return frozenset(torch.nonzero((said >= state).any(dim=0)).flatten().tolist())
