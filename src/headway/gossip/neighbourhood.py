"""All edges of a rank: a message to every neighbour, one from every neighbour, and those that are lost left out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from torch import Tensor

from headway.collectives.wire import Wire
from headway.gossip.edge import Edge, EdgeLost, write_header
from headway.gossip.notices import Notices

_SLICE = 0.2
"""Of the time a neighbour has."""
_LONGEST_SLICE_S = 5.0
_MOST_PATIENCE = 10
"""Times the time a neighbour has: for longer notices are not believed."""


class Neighbourhood:
    """Sends and receives along the edges of this rank.

    Args:
        wire: What carries the messages.
        word_wire: What carries notices, beside them.
        ranks: The neighbours.
        num_bytes: Returns how long the message of a number is, header included.
        timeout_s: How long to wait for a neighbour that gives no notice, before it is given up.
        on_lost: Called with neighbours that are lost, and why; may raise instead of going on without them.
    """

    def __init__(
        self,
        wire: Wire,
        word_wire: Wire,
        ranks: Iterable[int],
        num_bytes: Callable[[int], int],
        timeout_s: float,
        on_lost: Callable[[dict[int, EdgeLost]], None],
    ) -> None:
        self._wire = wire
        self._num_bytes = num_bytes
        self._timeout_s = timeout_s
        self._on_lost = on_lost
        self._notices = {rank: Notices(word_wire, rank) for rank in sorted(ranks)}
        self._edges: dict[int, Edge | None] = dict.fromkeys(sorted(ranks))
        self._given_up: list[Edge] = []
        self.needed_since: float | None = None
        """Since when training waits for messages, by `time.monotonic`; None while it has something else to do."""
        self._num_openings = 0
        self._slice_s = min(_SLICE * timeout_s, _LONGEST_SLICE_S)
        """So often notices are given."""
        self._is_over = threading.Event()
        threading.Thread(target=self._give_notices, name="headway-notices", daemon=True).start()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The neighbours that are left."""
        return tuple(self._edges)

    def open(self, first: int) -> None:
        """Make ready for messages, the first of which has this number; again, for others than were expected."""
        self._edges = {rank: Edge(self._wire, rank, first, self._num_bytes, self._num_openings) for rank in self._edges}
        self._num_openings += 1

    def send(self, number: int, message: Tensor) -> None:
        """Start to send to every neighbour; the first eight bytes of the message are for its header."""
        write_header(message, number)
        for edge in filter(None, self._edges.values()):
            edge.send(number, message)
        for edge in self._given_up:
            farewell = message.clone()
            write_header(farewell, number, is_last=True)
            edge.send(number, farewell)
        self._given_up.clear()

    def receive(self, number: int, take: Callable[[int, Tensor], None]) -> bool:
        """Hand the message of every neighbour to ``take``, in order of rank; return whether all have come."""
        lost: dict[int, EdgeLost] = {}
        for rank, edge in self._edges.items():
            assert edge is not None
            self._wait_for(rank, edge)
            try:
                with edge.taken(number) as message:
                    take(rank, message)
            except EdgeLost as error:
                lost[rank] = error
        for rank, reason in lost.items():
            edge = self._edges.pop(rank)
            if reason.is_silent and edge is not None:
                self._given_up.append(edge)
        if lost:
            self._on_lost(lost)
        return not lost

    def _wait_for(self, rank: int, edge: Edge) -> None:
        """Wait for a neighbour's message, the longer if it gives notice; while training is busy here nobody is late."""
        while not edge.has_come_within(self._slice_s):
            since = self.needed_since
            if since is None:
                continue
            last_sign = max(since, min(self._notices[rank].heard_at, since + _MOST_PATIENCE * self._timeout_s))
            if time.monotonic() > last_sign + self._timeout_s:
                return

    def _give_notices(self) -> None:
        """Tell neighbours, now and then, that this rank waits, or that a message to them is under way."""
        while not self._is_over.wait(self._slice_s):
            for rank, edge in list(self._edges.items()):
                if edge is not None and (self.needed_since is not None or edge.is_unanswered):
                    self._notices[rank].give()

    def close(self) -> None:
        """Give no more notices."""
        self._is_over.set()
