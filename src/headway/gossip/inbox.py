"""Messages from one peer, received on a thread: the only place where gossip waits in torch.

Gloo closes all connections of a group when a wait runs out of time, so a late peer would take the others with it.
Hence a thread waits without a deadline and puts what arrives in a queue, and callers wait on the queue with one.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque

import torch
import torch.distributed as dist
from torch import Tensor

from headway.collectives.wire import FOREVER_S, BrokenWire, Pending, Wire

_MOST_NOTES = 256
"""Notes kept for each peer until they have left; far more than are sent before a silent peer is given up."""


class Inbox:
    """Receives what one peer sends with one tag, in order; opened by `MessageWire.open_inbox`.

    Args:
        wire: Transport to receive from.
        peer: Rank of the sender.
        tag: Tag of the messages.
        keeps_arrivals: Whether messages are queued for `get`. If not, only their arrival counts, and each buffer is
            posted again at once.
    """

    def __init__(self, wire: Wire, peer: int, tag: int, *, keeps_arrivals: bool = True) -> None:
        self.peer = peer
        self.num_arrived = 0
        self.last_arrival_s = 0.0
        """Time of the last arrival, by `time.monotonic`."""
        self._wire = wire
        self._tag = tag
        self._keeps_arrivals = keeps_arrivals
        self._posted: queue.SimpleQueue[Pending | None] = queue.SimpleQueue()
        self._arrived: queue.SimpleQueue[Tensor | RuntimeError] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._receive_all, name=f"headway-inbox-{peer}-{tag}", daemon=True)
        self._thread.start()

    def post(self, buffer: Tensor) -> None:
        """Receive a message into a buffer, after those already posted; the sender need not wait for permission then."""
        try:
            self._posted.put(self._wire.receive(buffer, self.peer, self._tag))
        except BrokenWire as broken:
            self._arrived.put(broken)

    def get(self, timeout_s: float) -> Tensor | None:
        """Return the next message, as bytes, or None if there is none within the timeout.

        Raises:
            BrokenWire: The connection is gone, and all messages that arrived before have been returned.
        """
        try:
            arrived = self._arrived.get(timeout=timeout_s) if timeout_s > 0 else self._arrived.get_nowait()
        except queue.Empty:
            return None
        if isinstance(arrived, RuntimeError):
            self._arrived.put(arrived)  # for later calls
            raise BrokenWire(self.peer, timed_out=False, cause=str(arrived)) from arrived
        return arrived

    def close(self) -> None:
        """Let the thread end once nothing posted is outstanding; cut the wire first."""
        self._posted.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        self._thread.join(timeout_s)

    def _receive_all(self) -> None:
        while (pending := self._posted.get()) is not None:
            try:
                self._wire.wait(pending)
            except RuntimeError as error:
                self._arrived.put(error)
                return
            self.last_arrival_s = time.monotonic()
            self.num_arrived += 1
            if self._keeps_arrivals:
                self._arrived.put(pending.tensor)
            else:
                self.post(pending.tensor)


class MessageWire:
    """Sends messages to all peers of a process group, and owns the inboxes that receive theirs.

    Args:
        group: Process group of its own: nothing else may use it.
        rank: This rank.
        num_ranks: Number of ranks in the group.
    """

    def __init__(self, group: dist.ProcessGroup, rank: int, num_ranks: int) -> None:
        self._wire = Wire(group, FOREVER_S)
        self._peers = [peer for peer in range(num_ranks) if peer != rank]
        self._notes: dict[int, deque[Pending]] = {peer: deque(maxlen=_MOST_NOTES) for peer in self._peers}
        self._inboxes: list[Inbox] = []
        self.is_cut = False
        """Whether all connections are closed: nothing more is sent."""

    def open_inbox(self, peer: int, tag: int, *, keeps_arrivals: bool = True) -> Inbox:
        """Return the one inbox for what a peer sends with a tag."""
        inbox = Inbox(self._wire, peer, tag, keeps_arrivals=keeps_arrivals)
        self._inboxes.append(inbox)
        return inbox

    def send(self, message: Tensor, peer: int, tag: int) -> Pending | None:
        """Start to send bytes; keep what is returned, and the message unchanged, until the message has arrived.

        Returns None if the connection is gone: the inbox of that peer reports it.
        """
        if self.is_cut:
            return None
        try:
            return self._wire.send(message, peer, tag)
        except BrokenWire:
            return None

    def send_note(self, note: Tensor, peer: int, tag: int) -> None:
        """Send a few bytes, which must not change afterwards."""
        pending = self.send(note.view(torch.uint8), peer, tag)
        if pending is not None:
            self._notes[peer].append(pending)

    def cut(self) -> None:
        """Close all connections, so that no thread waits in torch any more, here or on other ranks."""
        self.is_cut = True
        self._wire.close(self._peers)
        for inbox in self._inboxes:
            inbox.close()

    def release(self, deadline: float) -> None:
        """Wait for the threads of its inboxes, which end after `cut`, and let go of the process group.

        Args:
            deadline: Until when to wait (`time.monotonic`).
        """
        for inbox in self._inboxes:
            inbox.join(max(deadline - time.monotonic(), 0.0))
        self._inboxes.clear()
        for notes in self._notes.values():
            notes.clear()
        self._wire.release()
