"""Run directories among what a user names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headway.report.events import COMPARISON_FILE, CONFIG_FILE, EVENTS_FILE
from headway.report.run import read_events


def find_runs(folders: Sequence[Path | str]) -> list[Path]:
    """Return run directories: those named, and those in a folder that is named and is none itself, each once.

    Raises:
        ValueError: A folder is not there, or has no run in it.
    """
    found: dict[Path, Path] = {}
    for folder in map(Path, folders):
        for run in _runs_of(folder):
            found.setdefault(run.resolve(), run)
    return list(found.values())


def is_run(folder: Path) -> bool:
    """Return whether a run has begun to train here."""
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
    return inside or [folder]  # one that is no run directory is told what it lacks when it is read


def _compared_in(folder: Path) -> list[Path]:
    """Return the runs of a comparison, if the folder holds one."""
    if not (folder / COMPARISON_FILE).is_file():
        return []
    return sorted(child for child in folder.iterdir() if is_run(child))
