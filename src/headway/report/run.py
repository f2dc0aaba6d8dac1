"""Run directories: finding and reading them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.exchange import saved_share
from headway.report.events import COMPARISON_FILE, CONFIG_FILE, EVENTS_FILE, VERSION, Event


@dataclass(frozen=True, kw_only=True)
class Run:
    """The events of a run by kind, each in order of time."""

    folder: Path
    start: Event
    steps: list[Event] = field(default_factory=list)
    decisions: list[Event] = field(default_factory=list)
    evaluations: list[Event] = field(default_factory=list)
    ranks: list[Event] = field(default_factory=list)
    phases: list[Event] = field(default_factory=list)
    notices: list[Event] = field(default_factory=list)
    end: Event | None = None
    """None while the run goes on, or if it was killed."""

    @property
    def name(self) -> str:
        """The method, or else the name of the folder."""
        return str(self.start.get("method") or self.folder.resolve().name)

    @property
    def time_s(self) -> float:
        """The training clock at the last step."""
        return float(self.steps[-1]["time_s"]) if self.steps else 0.0

    @property
    def wire_bytes(self) -> int:
        """What rank 0 sent."""
        return sum(step.get("wire_bytes") or 0 for step in self.steps)

    @property
    def dense_bytes(self) -> int:
        """What ring all-reduces of everything would have sent."""
        return sum(step.get("dense_bytes") or 0 for step in self.steps)

    @property
    def saved(self) -> float:
        """The share of dense traffic that was not sent."""
        return saved_share(self.wire_bytes, self.dense_bytes)

    @property
    def accuracy(self) -> float | None:
        """The accuracy at the last evaluation, if there was one."""
        return self.evaluations[-1].get("accuracy") if self.evaluations else None


def read_run(folder: Path | str) -> Run:
    """Read a run directory; the run may still be going on, or have been killed.

    If a run was resumed from an earlier checkpoint, or started again, only the last version of each step counts.

    Raises:
        ValueError: The folder is not a run directory, or has another version.
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


def is_switch(decision: Event) -> bool:
    """Return whether a decision changed the plan."""
    return bool(decision.get("plan") != decision.get("before"))


def _forget_after(run: dict[str, list[Event]], step: int) -> None:
    for events in run.values():
        events[:] = [event for event in events if event.get("step", 0) <= step]


def read_events(path: Path) -> Iterator[Event]:
    """Yield the events of a file, without an incomplete last line.

    Raises:
        ValueError: A line is not an event.
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
    """Return the configuration of a run directory of any version."""
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
    """Raise `ValueError` if this version cannot read a run directory, or if it has no events."""
    version = read_config(folder).get("version")
    if version != VERSION:
        raise ValueError(
            f"{folder} is a run directory of version {version!r}, but this headway reads version {VERSION}: "
            "use the headway that wrote it, or train again"
        )
    if needs_events and not (folder / EVENTS_FILE).is_file():
        raise ValueError(f"{folder} has no {EVENTS_FILE}: the run has not begun to train")


def find_runs(folders: Sequence[Path | str]) -> list[Path]:
    """Return each run directory once: the folders themselves, or else the runs inside them.

    Raises:
        ValueError: A folder does not exist.
    """
    found: dict[Path, Path] = {}
    for folder in map(Path, folders):
        for run in _runs_of(folder):
            found.setdefault(run.resolve(), run)
    return list(found.values())


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run directory in which training has started."""
    path = folder / EVENTS_FILE
    if not ((folder / CONFIG_FILE).is_file() and path.is_file()):
        return False
    return any(event["event"] == "start" for event in read_events(path))


def _runs_of(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: give a run directory, as headway train --output makes one")
    if is_run(folder):
        return [folder]
    children = sorted(child for child in folder.iterdir() if child.is_dir())
    inside = [run for child in children for run in ([child] if is_run(child) else _compared_in(child))]
    return inside or [folder]  # read_run says what a folder lacks to be a run directory


def _compared_in(folder: Path) -> list[Path]:
    """Return the runs of a comparison, or nothing if the folder is not one."""
    if not (folder / COMPARISON_FILE).is_file():
        return []
    return sorted(child for child in folder.iterdir() if is_run(child))
