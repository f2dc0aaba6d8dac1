"""Everything Headway raises for reasons that are neither the caller's nor a bug of ours.

    HeadwayError
    ├── LabError          the lab cannot run here, or broke
    └── MessageError      a message from a peer is malformed

A wrong argument is a plain ``ValueError``.
"""

from __future__ import annotations


class HeadwayError(Exception):
    """The root of the tree."""


class LabError(HeadwayError):
    """The lab is not possible on this machine, or has broken down; the message says what is missing."""


class MessageError(HeadwayError):
    """A message is malformed: wrong length, counts that do not add up, an index out of range or order.

    Nothing of such a message has been used. ``peer`` is the rank that sent it, where that is known.
    """

    def __init__(self, reason: str, *, peer: int | None = None) -> None:
        self.reason = reason
        self.peer = peer
        super().__init__(reason if peer is None else f"message from rank {peer}: {reason}")

    def from_peer(self, rank: int) -> MessageError:
        """Return the same error, naming the rank that sent the message."""
        return MessageError(self.reason, peer=rank)
