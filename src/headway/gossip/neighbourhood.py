"""All edges of a rank: a message to and from every neighbour in each round; lost neighbours are left out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from torch import Tensor

from headway.gossip.edge import Edge, EdgeLost, write_header
from headway.gossip.inbox import MessageWire

_HEARTBEAT_TAG = 2
_HEARTBEAT_INTERVAL = 0.2
"""As a fraction of the timeout."""
_LONGEST_HEARTBEAT_INTERVAL_S = 5.0
_LONGEST_EXTENSION = 10
"""Heartbeats extend a neighbour's time by at most this many timeouts."""


class Neighbourhood:
    """Sends and receives along the edges of this rank. Edges open with the first round that is sent.

    Args:
        wire: Transport of the messages.
        note_wire: Transport of the heartbeats.
        ranks: The neighbours.
        num_bytes: Returns the size of a round's message, header included.
        timeout_s: How long to wait for a neighbour that sends no heartbeat before it is given up.
    """

    def __init__(
        self,
        wire: MessageWire,
        note_wire: MessageWire,
        ranks: Iterable[int],
        num_bytes: Callable[[int], int],
        timeout_s: float,
    ) -> None:
        self.ranks = tuple(sorted(ranks))
        """The neighbours that are left."""
        self.lost: tuple[int, ...] = ()
        self.needed_since: float | None = None
        """Since when training waits for messages, by `time.monotonic`; None while it does something else."""
        self._wire = wire
        self._num_bytes = num_bytes
        self._timeout_s = timeout_s
        self._edges: dict[int, Edge] = {}
        self._given_up: list[Edge] = []
        """Edges to silent neighbours; kept, since messages to them may still be on their way."""
        self._num_openings = 0
        self._interval_s = min(_HEARTBEAT_INTERVAL * timeout_s, _LONGEST_HEARTBEAT_INTERVAL_S)
        self._heartbeats = NeighbourHeartbeats(note_wire, self.ranks, self._interval_s, self._is_heartbeat_due)

    def restart(self) -> None:
        """Expect messages of other rounds than the posted receives are for; all ranks call it between rounds."""
        self._edges = {}

    def send(self, number: int, message: Tensor) -> None:
        """Start to send the message of a round to every neighbour; its header is written here."""
        if not self._edges:
            self._open(number)
        write_header(message, number)
        for edge in self._edges.values():
            edge.send(message)
        for edge in self._given_up:
            edge.send_farewell(number, message)

    def receive(self, number: int, take: Callable[[int, Tensor], None]) -> Mapping[int, EdgeLost]:
        """Pass the message of every neighbour to ``take``, in order of rank; return who was lost, and why."""
        lost: dict[int, EdgeLost] = {}
        for rank, edge in self._edges.items():
            try:
                message = edge.receive(number, self._interval_s, partial(self._may_wait, rank))
            except EdgeLost as error:
                lost[rank] = error
            else:
                take(rank, message)
                edge.reuse(number, message)
        for rank, reason in lost.items():
            edge = self._edges.pop(rank)
            if reason.is_silent:
                self._given_up.append(edge)
        self.ranks = tuple(rank for rank in self.ranks if rank not in lost)
        self.lost += tuple(lost)
        return lost

    def close(self) -> None:
        """Send no more heartbeats."""
        self._heartbeats.close()

    def _open(self, first: int) -> None:
        epoch, self._num_openings = self._num_openings, self._num_openings + 1
        self._edges = {rank: Edge(self._wire, rank, first, self._num_bytes, epoch) for rank in self.ranks}

    def _may_wait(self, rank: int) -> bool:
        """Return whether a neighbour has time left; it is not late while training does something else."""
        since = self.needed_since
        if since is None:
            return True
        believed_until = since + _LONGEST_EXTENSION * self._timeout_s
        last_sign = max(since, min(self._heartbeats.last_heard_s(rank), believed_until))
        return time.monotonic() <= last_sign + self._timeout_s

    def _is_heartbeat_due(self, rank: int) -> bool:
        """Return whether this rank waits, or its message to the neighbour may still be on its way."""
        edge = self._edges.get(rank)
        return edge is not None and (self.needed_since is not None or edge.is_unanswered)


class NeighbourHeartbeats:
    """Sends heartbeats to neighbours while this rank waits, or its message is on its way; notes when theirs arrive.

    When a rank is silent its neighbours wait for it, and their neighbours for them: all would run out of time
    together. And over a slow link a message may take longer than the timeout. So each heartbeat restarts the timeout;
    only a rank that neither waits nor sends is given up.

    Args:
        wire: Transport of the heartbeats; not that of the messages, behind which they would queue.
        ranks: The neighbours.
        interval_s: Time between heartbeats.
        is_due: Returns whether a neighbour should get one now.
    """

    def __init__(
        self, wire: MessageWire, ranks: Iterable[int], interval_s: float, is_due: Callable[[int], bool]
    ) -> None:
        self._wire = wire
        self._interval_s = interval_s
        self._is_due = is_due
        self._inboxes = {rank: wire.open_inbox(rank, _HEARTBEAT_TAG, keeps_arrivals=False) for rank in ranks}
        for inbox in self._inboxes.values():
            inbox.post(torch.zeros(4, dtype=torch.uint8))
        self._is_over = threading.Event()
        threading.Thread(target=self._beat, name="headway-gossip-heartbeats", daemon=True).start()

    def last_heard_s(self, rank: int) -> float:
        """Return when the last heartbeat of a neighbour came, by `time.monotonic`; 0 if none has."""
        return self._inboxes[rank].last_arrival_s

    def close(self) -> None:
        """Send no more."""
        self._is_over.set()

    def _beat(self) -> None:
        while not self._is_over.wait(self._interval_s) and not self._wire.is_cut:
            for rank in self._inboxes:
                if self._is_due(rank):
                    self._wire.send_note(torch.zeros(4, dtype=torch.uint8), rank, _HEARTBEAT_TAG)
