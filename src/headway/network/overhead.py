"""What collectives cost beside the network: processing messages, and copying bytes."""

from __future__ import annotations

from dataclasses import dataclass

# What other things cost in messages, fitted to 400 collectives of all kinds among 8 hosts.
_CALL, _ROUND, _NATIVE_ROUND = 4.0, 0.5, 1.3


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """What starting and ending messages and copying bytes takes, at the busiest rank.

        t = 4 m + rounds m/2 + messages m + bytes b;   torch's own collectives: rounds 1.3 m

    Args:
        message_s: m; as it comes, with two processes of a machine that has a core for each.
        byte_s: b, for a byte sent or received.
    """

    message_s: float = 1.3e-4
    byte_s: float = 2.5e-10

    def __post_init__(self) -> None:
        for name in ("message_s", "byte_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be 0 or more")

    def of_schedule(self, rounds: float, num_messages: int, num_bytes: float) -> float:
        """Return the seconds that a schedule's processing takes."""
        return (_CALL + _ROUND * rounds + num_messages) * self.message_s + num_bytes * self.byte_s

    def of_native(self, rounds: float) -> float:
        """Return the seconds that torch's own collective takes to process its messages."""
        return _NATIVE_ROUND * rounds * self.message_s

    def message_s_of(self, seconds: float, rounds: float, num_messages: int) -> float:
        """Return m, from what the processing of small messages has taken."""
        return seconds / (_CALL + _ROUND * rounds + num_messages)
