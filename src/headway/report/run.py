"""A run directory, read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.report.events import CONFIG_FILE, EVENTS_FILE, VERSION, Event


@dataclass(frozen=True, kw_only=True)
class Run:
    """What happened in a run, by kind of event, each in order of time."""

    folder: Path
    start: Event
    steps: list[Event] = field(default_factory=list)
    decisions: list[Event] = field(default_factory=list)
    evaluations: list[Event] = field(default_factory=list)
    ranks: list[Event] = field(default_factory=list)
    phases: list[Event] = field(default_factory=list)
    notices: list[Event] = field(default_factory=list)
    end: Event | None = None
    """None while it runs, or if it was killed."""

    @property
    def name(self) -> str:
        """What tells it from others: its method, if it has one."""
        return str(self.start.get("method") or self.folder.resolve().name)

    @property
    def time_s(self) -> float:
        """On the training clock, at the last step."""
        return float(self.steps[-1]["time_s"]) if self.steps else 0.0

    @property
    def wire_bytes(self) -> int:
        """Sent by rank 0."""
        return sum(step.get("wire_bytes") or 0 for step in self.steps)

    @property
    def dense_bytes(self) -> int:
        """What ring all-reduces of everything would have sent."""
        return sum(step.get("dense_bytes") or 0 for step in self.steps)

    @property
    def saved(self) -> float:
        """The share of dense traffic that was not sent."""
        return 1 - self.wire_bytes / self.dense_bytes if self.dense_bytes else 0.0

    @property
    def accuracy(self) -> float | None:
        """At the last evaluation, if there was one."""
        return self.evaluations[-1].get("accuracy") if self.evaluations else None


def read_run(folder: Path | str) -> Run:
    """Read a run directory; the run may still be going on, or have been killed.

    Where a run went on from an earlier checkpoint, or began anew, the steps after that count once, as they came last.

    Raises:
        ValueError: It is no run directory, or one of another version; the message says what to do.
    """
    folder = Path(folder)
    check_version(folder)
    run: dict[str, Any] = {kind: [] for kind in _LIST_OF.values()}
    start: Event | None = None
    end: Event | None = None
    time_s = 0.0
    for event in read_events(folder / EVENTS_FILE):
        kind = event["event"]
        time_s = event.setdefault("time_s", time_s) or 0.0
        if kind == "start":
            start, end = event, None
            _forget_after(run, 0)
        elif kind == "resume" and start is not None:
            end = None
            start |= {name: value for name, value in event.items() if name in start and name not in ("event", "time_s")}
            _forget_after(run, event["step"])
        elif kind == "end":
            end = event
        elif kind in _LIST_OF:
            if not isinstance(event.get("step"), int):
                raise ValueError(f"{folder / EVENTS_FILE} has an event {kind!r} without a step: the file is damaged")
            run[_LIST_OF[kind]].append(event)
    if start is None:
        raise ValueError(f"{folder} has no events yet: the run has not begun to train")
    return Run(folder=folder, start=start, end=end, **run)


_LIST_OF = {
    "step": "steps",
    "decision": "decisions",
    "evaluation": "evaluations",
    "ranks": "ranks",
    "phase": "phases",
    "notice": "notices",
}


def _forget_after(run: dict[str, list[Event]], step: int) -> None:
    for events in run.values():
        events[:] = [event for event in events if event.get("step", 0) <= step]


def read_events(path: Path) -> Iterator[Event]:
    """Yield the events of a file; a last line that is not whole yet is left out.

    Raises:
        ValueError: A line is not an event; the message gives its number.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.endswith(b"\n"):
                yield parse_event(line, f"{path}, line {number}")


def parse_event(line: bytes, place: str) -> Event:
    """Return the event of a line."""
    try:
        event = json.loads(line)
    except ValueError:
        raise ValueError(f"{place} is not JSON: the file is damaged") from None
    if not (isinstance(event, dict) and isinstance(event.get("event"), str)):
        raise ValueError(f"{place} is not an event: the file is damaged")
    return event


def read_config(folder: Path) -> dict[str, Any]:
    """Return what is in the configuration of a run directory, whatever its version."""
    path = folder / CONFIG_FILE
    try:
        content = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"{folder} is not a run directory: it has no {CONFIG_FILE}; headway train --output makes one"
        ) from None
    except ValueError:
        raise ValueError(f"{path} is not JSON: the file is damaged") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} does not hold a configuration: the file is damaged")
    return content


def check_version(folder: Path, *, needs_events: bool = True) -> None:
    """Raise `ValueError` if a run directory was written by a version that this one cannot read, or holds no events."""
    version = read_config(folder).get("version")
    if version != VERSION:
        raise ValueError(
            f"{folder} is a run directory of version {version!r}, but this headway reads version {VERSION}: "
            "use the headway that wrote it, or train anew"
        )
    if needs_events and not (folder / EVENTS_FILE).is_file():
        raise ValueError(f"{folder} has no {EVENTS_FILE}: the run has not begun to train")
