"""The exceptions that Headway raises for reasons other than a wrong argument or a bug.

    HeadwayError
    ├── LabError          the lab cannot run here, or failed
    ├── MessageError      a message from a peer is malformed
    ├── MismatchError     ranks are about to do different things (found in debug mode)
    └── PeerLost          a rank is gone, or has not answered before the deadline

A wrong argument is a plain ``ValueError``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class HeadwayError(Exception):
    """The base class."""


class LabError(HeadwayError):
    """The lab cannot run on this machine, or has failed; the message says what is missing."""


class MessageError(HeadwayError):
    """A message is malformed: wrong length, counts that do not add up, an index out of range or order.

    No part of such a message has been used. ``peer`` is the rank that sent it, if known.
    """

    def __init__(self, reason: str, *, peer: int | None = None) -> None:
        self.reason = reason
        self.peer = peer
        super().__init__(reason if peer is None else f"message from rank {peer}: {reason}")

    def from_peer(self, rank: int) -> MessageError:
        """Return the same error, naming the rank that sent the message."""
        return MessageError(self.reason, peer=rank)


class MismatchError(HeadwayError):
    """Ranks are about to do different things; ``intents`` holds what each was about to do, in order of rank."""

    def __init__(self, intents: Sequence[str]) -> None:
        self.intents = tuple(intents)
        lines = "".join(f"\n  rank {rank}: {intent}" for rank, intent in enumerate(intents))
        super().__init__(f"ranks disagree about the next collective:{lines}")

    def __reduce__(self) -> tuple[Any, ...]:
        return MismatchError, (self.intents,)


class PeerLost(HeadwayError):
    """Ranks are gone, or have not answered before the deadline; ``ranks`` holds the same ranks on all that are left.

    It is empty on a rank that came too late, and that all others have given up on.
    """

    def __init__(self, ranks: Iterable[int], doing: str, after_s: float | None = None) -> None:
        self.ranks = tuple(sorted(ranks))
        self.doing = doing
        self.after_s = after_s
        super().__init__(f"{self._what_happened()} (in {doing})")

    def __reduce__(self) -> tuple[Any, ...]:
        return PeerLost, (self.ranks, self.doing, self.after_s)

    def _what_happened(self) -> str:
        if not self.ranks:
            return "the other ranks have given up waiting for this one"
        names = ranks_in_words(self.ranks)
        if self.after_s is None:
            return f"lost {names}"
        return f"no answer from {names} within {self.after_s:g} s; HEADWAY_DEBUG=1 shows whether ranks disagree"


def ranks_in_words(ranks: Iterable[int]) -> str:
    """Return ranks as part of a sentence.

    >>> ranks_in_words([3]), ranks_in_words([0, 2])
    ('rank 3', 'ranks 0, 2')
    """
    listed = list(ranks)
    return f"rank{'s' * (len(listed) > 1)} {', '.join(map(str, listed))}"
