"""An edge of the topology, and the messages on it: one to and one from a neighbour in each round.

The receives of the next two messages are always posted, so that the neighbour can send without asking. It is at most
one round ahead: it sends a message only after it has received this rank's previous one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.collectives.wire import BrokenWire, Pending
from headway.errors import MessageError
from headway.gossip.inbox import MessageWire

HEADER_BYTES = 8
"""The number of the round, and whether the message is a farewell."""
_NUM_AHEAD = 2
_NUM_UNCONFIRMED = 3
"""Sent messages that may not have arrived yet: those of two rounds, and a farewell."""
_FIRST_TAG = 64
_NUM_TAGS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class MessageLayout:
    """The size of each round's message, and where its parts are.

    Args:
        payload_bytes: Size of a compressed model.
        buffer_bytes: Size of the model's buffers.
        buffer_interval: Rounds between messages that carry buffers; 0 if none does.

    >>> layout = MessageLayout(payload_bytes=100, buffer_bytes=12, buffer_interval=10)
    >>> layout.num_bytes(9), layout.num_bytes(10)
    (108, 120)
    """

    payload_bytes: int
    buffer_bytes: int = 0
    buffer_interval: int = 0

    def has_buffers(self, number: int) -> bool:
        """Return whether the messages of a round carry buffers."""
        return self.buffer_bytes > 0 and self.buffer_interval > 0 and number % self.buffer_interval == 0

    def num_bytes(self, number: int) -> int:
        """Return the size of a message of a round, header included."""
        return HEADER_BYTES + self.payload_bytes + (self.buffer_bytes if self.has_buffers(number) else 0)

    def payload(self, message: Tensor) -> Tensor:
        """Return the part of a message that the compressor writes and reads."""
        return message[HEADER_BYTES : HEADER_BYTES + self.payload_bytes]

    def buffers(self, message: Tensor) -> Tensor:
        """Return the part of a message that holds buffers; empty if it has none."""
        return message[HEADER_BYTES + self.payload_bytes :]


def write_header(message: Tensor, number: int, *, is_farewell: bool = False) -> None:
    """Write the first bytes of a message.

    Args:
        message: The message.
        number: Number of its round, from 1.
        is_farewell: Whether this rank has given up on the receiver, and sends nothing more.
    """
    message[:HEADER_BYTES].view(torch.int32).copy_(torch.tensor([number, is_farewell], dtype=torch.int32))


class EdgeLost(Exception):
    """A neighbour is gone, has not answered in time, or has given up on this rank."""

    def __init__(self, reason: str, *, is_silent: bool = False, by_farewell: bool = False) -> None:
        self.is_silent = is_silent
        self.by_farewell = by_farewell
        super().__init__(reason)


class Edge:
    """Sends to a neighbour and receives from it.

    Args:
        wire: Transport of the messages.
        peer: Rank of the neighbour.
        first: Number of the first round.
        num_bytes: Returns the size of a round's message.
        epoch: Number of earlier edges to this neighbour, the same on both ends.
    """

    def __init__(self, wire: MessageWire, peer: int, first: int, num_bytes: Callable[[int], int], epoch: int) -> None:
        self.peer = peer
        self._wire = wire
        self._num_bytes = num_bytes
        self._tag = _FIRST_TAG + epoch % _NUM_TAGS
        self._num_sent = 0
        self._has_sent_farewell = False
        self._unconfirmed: deque[Pending] = deque(maxlen=_NUM_UNCONFIRMED)
        self._inbox = wire.open_inbox(peer, self._tag)
        for number in range(first, first + _NUM_AHEAD):
            self._inbox.post(torch.empty(num_bytes(number), dtype=torch.uint8))

    @property
    def is_unanswered(self) -> bool:
        """Whether the last message may still be on its way: the neighbour's next one confirms it."""
        return self._num_sent >= self._inbox.num_arrived

    def send(self, message: Tensor) -> None:
        """Start to send a message, which must not change until the next round's has been received."""
        self._num_sent += 1
        pending = self._wire.send(message, self.peer, self._tag)
        if pending is not None:
            self._unconfirmed.append(pending)

    def send_farewell(self, number: int, message: Tensor) -> None:
        """Send a neighbour that was given up a farewell, once, in place of the message of a round."""
        if not self._has_sent_farewell:
            self._has_sent_farewell = True
            farewell = message.clone()
            write_header(farewell, number, is_farewell=True)
            self.send(farewell)

    def receive(self, number: int, timeout_s: float, may_wait: Callable[[], bool]) -> Tensor:
        """Return the neighbour's message of a round.

        Args:
            number: Number of the round.
            timeout_s: How long to wait before asking whether to go on waiting.
            may_wait: Returns whether to go on waiting.

        Raises:
            EdgeLost: There is none, and never will be.
            MessageError: The neighbour has sent the message of another round.
        """
        try:
            while (message := self._inbox.get(timeout_s)) is None:
                if not may_wait():
                    raise EdgeLost("has not answered in time", is_silent=True)
        except BrokenWire as broken:
            raise EdgeLost("is gone") from broken
        theirs, is_farewell = message[:HEADER_BYTES].view(torch.int32).tolist()
        if is_farewell:
            raise EdgeLost("has given this rank up", by_farewell=True)
        if theirs != number:
            raise MessageError(f"message {theirs}, but {number} is due: ranks must take the same steps", peer=self.peer)
        return message

    def reuse(self, number: int, message: Tensor) -> None:
        """Post the receive that comes after those already posted, into the memory of a round's message if it fits."""
        num_bytes = self._num_bytes(number + _NUM_AHEAD)
        fits = message.numel() == num_bytes
        self._inbox.post(message if fits else torch.empty(num_bytes, dtype=torch.uint8))
