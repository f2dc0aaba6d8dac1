"""The progress of a training run, followed through its events."""

from __future__ import annotations

import math
from collections import deque
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from headway.exchange import saved_share
from headway.report.events import EVENTS_FILE, Event
from headway.report.run import parse_event

_SMOOTHING = 0.2
_NUM_DECISIONS = 4
_NUM_STEPS_TIMED = 20


class Screen(Protocol):
    """Shows a run to the user while it trains."""

    def restore(self, event: Event) -> None:
        """Take in an event of the run before it was resumed, without showing it."""

    def show(self, event: Event) -> None:
        """Show a new event."""

    def show_output(self, rank: int, line: str) -> None:
        """Show a line that a worker printed."""

    def note(self, text: str) -> None:
        """Show a message."""


class OpenScreen(Protocol):
    """Makes the screen of a run."""

    def __call__(self, title: str, /) -> AbstractContextManager[Screen]:
        """Return a screen with a title that says what is trained, how and where."""


class RunProgress:
    """The latest figures of a run."""

    def __init__(self) -> None:
        self.start: Event = {}
        self.step = 0
        self.loss: float | None = None
        """Smoothed; NaN as soon as it is not finite."""
        self.accuracy: float | None = None
        self.latest: Event = {}
        """The last step."""
        self.wire_bytes = 0
        self.dense_bytes = 0
        self.phase: Event | None = None
        self.decisions: deque[str] = deque(maxlen=_NUM_DECISIONS)
        self._steps_s: deque[float] = deque(maxlen=_NUM_STEPS_TIMED)

    def update(self, event: Event) -> None:
        """Take in the next event."""
        kind = event["event"]
        if kind == "start":
            self.start = event
        elif kind == "step":
            self._update_step(event)
        elif kind == "evaluation":
            self.accuracy = event["accuracy"]
        elif kind == "decision":
            self.decisions.append(event["words"])
        elif kind == "phase":
            self.phase = event
        elif kind == "resume":
            self.start = {**self.start, **event}
            self.step = event["step"]

    @property
    def num_steps(self) -> int | None:
        """Number of steps of the run, if known."""
        return self.start.get("num_steps")

    @property
    def step_s(self) -> float | None:
        """Mean time of the last steps."""
        return sum(self._steps_s) / len(self._steps_s) if self._steps_s else None

    @property
    def left_s(self) -> float | None:
        """Time that the remaining steps will take at the pace of the last ones."""
        if self.step_s is None or self.num_steps is None:
            return None
        return (self.num_steps - self.step) * self.step_s

    @property
    def saved(self) -> float:
        """The share of dense traffic that was not sent."""
        return saved_share(self.wire_bytes, self.dense_bytes)

    def _update_step(self, event: Event) -> None:
        self.latest = event
        self.step = event["step"]
        self._steps_s.append(event["step_s"])
        self.wire_bytes += event["wire_bytes"]
        self.dense_bytes += event["dense_bytes"]
        loss = math.nan if event["loss"] is None else event["loss"]
        before = self.loss if self.loss is not None and math.isfinite(self.loss) else loss
        self.loss = (1 - _SMOOTHING) * before + _SMOOTHING * loss


class EventFollower:
    """Reads the events of a run while they are written; of events from before, only the start.

    Args:
        folder: The run directory.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / EVENTS_FILE
        self._rest = b""
        self._place = 0
        self._old_place = self._path.stat().st_size if self._path.exists() else 0

    def read(self) -> list[Event]:
        """Return the events written since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._place)
            content = self._rest + file.read()
            self._place = file.tell()
        *lines, self._rest = content.split(b"\n")
        events = []
        place = self._place - len(content)
        for line in lines:
            place += len(line) + 1
            event = parse_event(line, str(self._path))
            if place > self._old_place or event["event"] == "start":
                events.append(event)
        return events
