"""What happens to a rank's gossip besides training: neighbours that are lost, entries that do not fit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

LOGGER = logging.getLogger("headway.gossip")
_WORTH_TELLING = 0.001
"""Of the entries of a message."""


@dataclass(frozen=True, kw_only=True)
class GossipEvent:
    """Something that happened, in numbers and in words."""

    step: int
    kind: str
    """"neighbour_lost", "ranks_missing" or "saturated"."""
    text: str
    rank: int | None = None
    """The neighbour it is about."""

    def __str__(self) -> str:
        return f"step {self.step}: {self.text}"


class Journal:
    """Keeps the events of a run, and logs each as a warning."""

    def __init__(self) -> None:
        self.events: list[GossipEvent] = []
        self.step = 0
        """That training is at."""

    def note_loss(self, step: int, rank: int, reason: str, left: Sequence[int]) -> None:
        """Note that training goes on without a neighbour."""
        rest = f"neighbours left: {', '.join(map(str, left))}" if left else "no neighbour is left"
        self._note(GossipEvent(step=step, kind="neighbour_lost", rank=rank, text=f"rank {rank} {reason}; {rest}"))

    def note_missing(self, ranks: Sequence[int], parts: Sequence[Sequence[int]]) -> None:
        """Note that averages are without some ranks, and whether a path of neighbours still joins the others."""
        text = f"averages are without rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        if len(parts) > 1:
            text += f"; no path of neighbours joins ranks {' and '.join(map(str, parts))} any more"
        self._note(GossipEvent(step=self.step, kind="ranks_missing", text=text))

    def note_saturation(self, num_entries: int, numel: int) -> None:
        """Note, once, that more entries than can be ignored exceed the range of a fixed step."""
        if num_entries < _WORTH_TELLING * numel or any(event.kind == "saturated" for event in self.events):
            return
        text = f"{num_entries:,} of {numel:,} entries exceed the quantiser's range: give it a larger step or more bits"
        self._note(GossipEvent(step=self.step, kind="saturated", text=text))

    def _note(self, event: GossipEvent) -> None:
        self.events.append(event)
        LOGGER.warning("%s", event)
