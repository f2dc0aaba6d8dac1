"""What gossip reports about itself: events, such as the loss of a neighbour, and statistics."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headway.exchange import dense_bytes, saved_share

LOGGER = logging.getLogger("headway.gossip")
_MOST_SATURATED = 0.001
"""Fraction of a message's entries that may saturate without an event."""


@dataclass(frozen=True, kw_only=True)
class GossipEvent:
    """Something that happened to this rank besides training."""

    step: int
    kind: str
    """"neighbour_lost", "ranks_missing" or "saturated"."""
    text: str
    rank: int | None = None
    """The neighbour that the event is about."""

    def __str__(self) -> str:
        return f"step {self.step}: {self.text}"


class GossipEvents:
    """Keeps the events of a run, and logs each as a warning."""

    def __init__(self) -> None:
        self.all: list[GossipEvent] = []
        self.step = 0
        """Current step of training."""

    def note_loss(self, step: int, rank: int, reason: str, left: Sequence[int]) -> None:
        """Note that a neighbour is lost."""
        rest = f"neighbours left: {', '.join(map(str, left))}" if left else "no neighbour is left"
        self._note(GossipEvent(step=step, kind="neighbour_lost", rank=rank, text=f"rank {rank} {reason}; {rest}"))

    def note_missing(self, ranks: Sequence[int], parts: Sequence[Sequence[int]]) -> None:
        """Note that averages leave out some ranks, and whether a path of neighbours still joins the others."""
        text = f"averages are without rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        if len(parts) > 1:
            text += f"; no path of neighbours joins ranks {' and '.join(map(str, parts))} any more"
        self._note(GossipEvent(step=self.step, kind="ranks_missing", text=text))

    def note_saturation(self, num_entries: int, numel: int) -> None:
        """Note, once, that more than a few entries exceed the range of a fixed step."""
        if num_entries < _MOST_SATURATED * numel or any(event.kind == "saturated" for event in self.all):
            return
        text = f"{num_entries:,} of {numel:,} entries exceed the quantiser's range: give it a larger step or more bits"
        self._note(GossipEvent(step=self.step, kind="saturated", text=text))

    def _note(self, event: GossipEvent) -> None:
        self.all.append(event)
        LOGGER.warning("%s", event)


@dataclass(frozen=True, kw_only=True)
class GossipStatistics:
    """Totals of this rank since it was wrapped; ``step`` also counts steps before a resume."""

    step: int
    wire_bytes: int
    """Bytes sent to neighbours, headers included."""
    dense_bytes: int
    """Bytes that a ring all-reduce of every gradient would have sent."""
    compress_s: float
    """Time to make messages, during which training waits."""
    wait_s: float
    """Time that training waits for neighbours."""
    exchange_s: float
    """Time to send, wait for and apply messages; mostly while training goes on."""
    num_saturated: int
    """Entries that did not fit into a fixed-step quantiser's range."""

    @property
    def saved(self) -> float:
        """Fraction of dense traffic that was not sent."""
        return saved_share(self.wire_bytes, self.dense_bytes)

    def __str__(self) -> str:
        return (
            f"step {self.step}: {self.wire_bytes:,} bytes sent, where an all-reduce would send {self.dense_bytes:,}; "
            f"compress {self.compress_s:.2f} s, wait {self.wait_s:.2f} s, exchange {self.exchange_s:.2f} s"
        )


@dataclass
class Meter:
    """Counts steps, bytes and seconds."""

    num_steps: int = 0
    wire_bytes: int = 0
    compress_s: float = 0.0
    wait_s: float = 0.0
    exchange_s: float = 0.0
    num_saturated: int = 0

    @contextmanager
    def timing(self, counter: str) -> Iterator[None]:
        """Add the time spent inside to ``compress_s``, ``wait_s`` or ``exchange_s``."""
        start = time.perf_counter()
        yield
        setattr(self, counter, getattr(self, counter) + time.perf_counter() - start)

    def read(self, step: int, num_ranks: int, numel: int) -> GossipStatistics:
        """Return the totals."""
        counted = vars(self).copy()
        num_bytes = counted.pop("num_steps") * dense_bytes(4 * numel, num_ranks)
        return GossipStatistics(step=step, dense_bytes=num_bytes, **counted)
