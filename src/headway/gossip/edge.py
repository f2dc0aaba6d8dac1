"""One edge of the graph: messages to and from a neighbour, in order, each with a number.

The receives of the next two messages are always posted, so that no sender waits for a notice that it may send; a
neighbour is at most one message ahead. A thread waits for them without a deadline, and callers wait for the thread
with one: torch's Gloo closes all connections of a group when a wait of its own runs out of time, and an edge that is
late must not take the others with it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from headway.collectives.wire import BrokenWire, Pending, Wire
from headway.errors import MessageError

HEADER_BYTES = 8
"""The number of the message, and whether it is the last one."""
WAITING = "headway-waits-in-torch"
"""What the names of threads begin with that do."""
_NUM_AHEAD = 2
_FIRST_TAG = 64
_NUM_TAGS = 1 << 20


def write_header(message: Tensor, number: int, *, is_last: bool = False) -> None:
    """Write the first bytes of a message: its number, and whether the neighbour is given up with it."""
    message[:HEADER_BYTES].view(torch.int32).copy_(torch.tensor([number, is_last], dtype=torch.int32))


class EdgeLost(Exception):
    """The neighbour is gone, has not answered in time, or has given this rank up."""

    def __init__(self, reason: str, *, is_silent: bool = False, by_farewell: bool = False) -> None:
        self.is_silent = is_silent
        self.by_farewell = by_farewell
        super().__init__(reason)


class Edge:
    """Sends to a neighbour, and takes what it sends.

    Args:
        wire: What carries the messages.
        peer: The neighbour.
        first: The number of the first message.
        num_bytes: Returns how long the message of a number is, header included.
        epoch: How often edges have been made before on this wire, alike on both ends.
    """

    def __init__(self, wire: Wire, peer: int, first: int, num_bytes: Callable[[int], int], epoch: int) -> None:
        self.peer = peer
        self._wire = wire
        self._num_bytes = num_bytes
        self._tag = _FIRST_TAG + epoch % _NUM_TAGS
        self._posted: queue.SimpleQueue[tuple[Pending, Tensor]] = queue.SimpleQueue()
        self._came: queue.SimpleQueue[Tensor | RuntimeError] = queue.SimpleQueue()
        self._next: Tensor | RuntimeError | None = None
        self._leaving: dict[int, Pending] = {}
        self._last_sent = self._last_came = first - 1
        for number in range(first, first + _NUM_AHEAD):
            self._post(number)
        threading.Thread(target=self._wait_for_all, name=f"{WAITING}-edge-{peer}", daemon=True).start()

    def send(self, number: int, message: Tensor) -> None:
        """Start to send a message with a header; it must not change until the answer to it has been taken."""
        self._last_sent = number
        try:
            self._leaving[number] = self._wire.send(message, self.peer, self._tag)
        except BrokenWire:
            return  # whoever waits for the neighbour finds out

    @property
    def is_unanswered(self) -> bool:
        """Whether it is not known yet that the last message has arrived: the neighbour's next one tells."""
        return self._last_sent >= self._last_came

    def has_come_within(self, seconds: float) -> bool:
        """Wait so long at most for the next message; return whether it has come, or the edge is lost."""
        if self._next is None:
            with contextlib.suppress(queue.Empty):
                self._next = self._came.get(timeout=seconds)
        return self._next is not None

    @contextmanager
    def taken(self, number: int) -> Iterator[Tensor]:
        """Lend what is in the message that has come.

        Raises:
            EdgeLost: There is none.
            MessageError: It is another one.
        """
        message, self._next = self._next, None
        if message is None:
            raise EdgeLost("has not answered in time", is_silent=True)
        if isinstance(message, RuntimeError):
            raise EdgeLost("is gone") from message
        theirs, is_last = message[:HEADER_BYTES].view(torch.int32).tolist()
        if is_last:
            raise EdgeLost("has given this rank up", by_farewell=True)
        if theirs != number:
            raise MessageError(f"message {theirs}, but {number} is due: ranks must take the same steps", peer=self.peer)
        for sent in [sent for sent in self._leaving if sent < number]:
            del self._leaving[sent]  # answered, so it has arrived
        yield message[HEADER_BYTES:]
        self._post(number + _NUM_AHEAD, message)

    def _post(self, number: int, buffer: Tensor | None = None) -> None:
        num_bytes = self._num_bytes(number)
        if buffer is None or buffer.numel() != num_bytes:
            buffer = torch.empty(num_bytes, dtype=torch.uint8)
        try:
            self._posted.put((self._wire.receive(buffer, self.peer, self._tag), buffer))
        except BrokenWire as broken:
            self._came.put(broken)

    def _wait_for_all(self) -> None:
        while True:
            pending, buffer = self._posted.get()
            try:
                self._wire.wait_for_ever(pending)
            except RuntimeError as error:
                self._came.put(error)
                return
            self._last_came += 1
            self._came.put(buffer)
