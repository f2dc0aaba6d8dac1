"""The event log of a run: a line of JSON for each event. docs/runs.md lists the fields."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

VERSION = 1
"""The version of run directories and events. Adding a field keeps it; changing a field's meaning needs a new one."""

EVENTS_FILE = "events.jsonl"
CONFIG_FILE = "config.json"
COMPARISON_FILE = "comparison.json"

KINDS = ("start", "step", "decision", "evaluation", "ranks", "phase", "notice", "checkpoint", "resume", "end")
_FREQUENT = ("step",)
_FLUSH_S = 0.25

Event = dict[str, Any]
Listener = Callable[[Event], None]


class EventLog:
    """Appends events to the file of a run, and passes each to a listener.

    Steps are written a few times a second, all other events at once. Lines are written whole, so that several processes
    can append to one file.

    Args:
        folder: The run directory; it is created if it does not exist.
        listener: Called with every event.
    """

    def __init__(self, folder: Path | str, listener: Listener = lambda event: None) -> None:
        self.path = Path(folder) / EVENTS_FILE
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _drop_torn_line(self.path)
        self._file = self.path.open("ab", buffering=0)
        self._listener = listener
        self._pending: list[bytes] = []
        self._flushed_s = -math.inf

    def write(self, kind: str, **fields: Any) -> None:
        """Write an event; numbers that are not finite become null."""
        assert kind in KINDS
        event = {"event": kind, **plain(fields)}
        self._pending.append(json.dumps(event, allow_nan=False, separators=(",", ":")).encode() + b"\n")
        if kind not in _FREQUENT or time.monotonic() - self._flushed_s >= _FLUSH_S:
            self.flush()
        self._listener(event)

    def flush(self) -> None:
        """Write all pending events to the file."""
        self._flushed_s = time.monotonic()
        pending, self._pending = self._pending, []
        if pending and not self._file.closed:
            try:
                self._file.write(b"".join(pending))
            except OSError as error:  # training continues without the file
                self._file.close()
                warnings.warn(f"events are no longer written to {self.path}: {error}", stacklevel=3)

    def close(self) -> None:
        """Flush and close; a second call does nothing."""
        if not self._file.closed:
            self.flush()
            self._file.close()


def _drop_torn_line(path: Path) -> None:
    """Remove an incomplete last line, which a killed writer or a full disk may have left."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        file.seek(-1, 2)
        if file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


def plain(value: Any) -> Any:
    """Return a value as plain JSON data, without NaN, infinity, numpy types or paths.

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
