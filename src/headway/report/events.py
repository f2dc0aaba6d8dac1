"""The event log of a run: a line of JSON for everything that happened. docs/runs.md has the fields of each event."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

VERSION = 1
"""Of run directories and events. Fields may be added to a version; a field that changes its meaning makes a new one."""

EVENTS_FILE = "events.jsonl"
CONFIG_FILE = "config.json"
COMPARISON_FILE = "comparison.json"

KINDS = ("start", "step", "decision", "evaluation", "ranks", "phase", "notice", "checkpoint", "resume", "end")
_FREQUENT = ("step",)
_FLUSH_S = 0.25

Event = dict[str, Any]
Listener = Callable[[Event], None]


class EventLog:
    """Adds events to the file of a run, and tells a listener of each.

    Steps are written a few times a second, everything else at once. A line is written whole, so that several processes
    may add to one file.

    Args:
        folder: The run directory, which is made if it is not there.
        listener: Called with every event.
    """

    def __init__(self, folder: Path | str, listener: Listener = lambda event: None) -> None:
        self.path = Path(folder) / EVENTS_FILE
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _drop_torn_line(self.path)
        self._file = self.path.open("ab", buffering=0)
        self._listener = listener
        self._waiting: list[bytes] = []
        self._flushed_s = -math.inf

    def write(self, kind: str, **fields: Any) -> None:
        """Write an event; numbers that are not finite become null."""
        assert kind in KINDS
        event = {"event": kind, **plain(fields)}
        self._waiting.append(json.dumps(event, allow_nan=False, separators=(",", ":")).encode() + b"\n")
        if kind not in _FREQUENT or time.monotonic() - self._flushed_s >= _FLUSH_S:
            self.flush()
        self._listener(event)

    def flush(self) -> None:
        """Let readers see all that was written."""
        self._flushed_s = time.monotonic()
        waiting, self._waiting = self._waiting, []
        if waiting and not self._file.closed:
            try:
                self._file.write(b"".join(waiting))
            except OSError as error:  # training goes on without it
                self._file.close()
                warnings.warn(f"events are no longer written to {self.path}: {error}", stacklevel=3)

    def close(self) -> None:
        """Flush and close; a second call does nothing."""
        if not self._file.closed:
            self.flush()
            self._file.close()


def _drop_torn_line(path: Path) -> None:
    """Cut off what comes after the last whole line: a writer that was killed, or a full disk, may have left a part."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        file.seek(-1, 2)
        if file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


def plain(value: Any) -> Any:
    """Return a value as JSON has it: no NaN, no infinity, no numpy, no paths.

    >>> plain({"gain": float("nan"), "at": (1, 2.5)})
    {'gain': None, 'at': [1, 2.5]}
    """
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, (bool, int, str, type(None))):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return plain(value.item()) if hasattr(value, "item") else str(value)
