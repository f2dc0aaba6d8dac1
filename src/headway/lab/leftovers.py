"""Finds and removes what a lab leaves behind when its launcher is killed, or when workers start processes.

Namespaces and devices vanish with the last process in them, and workers are killed with the launcher. What may remain
are processes that a worker started in a session of their own, which have the mark of their lab in the environment, and
the lab's folder, which has it in its name.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK_VARIABLE = "HEADWAY_LAB_MARK"
_FOLDER_PREFIX = "headway-lab-"

_numbers = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """What was found and removed."""

    processes: tuple[int, ...]
    folders: tuple[Path, ...]


def new_mark() -> str:
    """Return a unique mark of a lab: its launcher's process number and start time, and a count of its labs."""
    return f"{os.getpid()}-{_start_time(os.getpid())}-{next(_numbers)}"


def make_folder(mark: str) -> Path:
    """Make the folder of a lab."""
    folder = Path(tempfile.gettempdir()) / f"{_FOLDER_PREFIX}{mark}"
    folder.mkdir(mode=0o700)
    return folder


def end_processes(mark: str) -> tuple[int, ...]:
    """End all processes with the mark of a lab, and return their numbers."""
    return _end_processes(lambda found: found == mark)


def clean() -> Leftovers:
    """End the processes and remove the folders of labs whose launcher is gone; leave everything else alone."""
    processes = _end_processes(lambda mark: not _is_alive(mark))
    folders = []
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*-*-*"):
        mark = folder.name.removeprefix(_FOLDER_PREFIX)
        if all(part.isdecimal() for part in mark.split("-")) and not _is_alive(mark):
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                folders.append(folder)
    return Leftovers(processes=processes, folders=tuple(folders))


def _end_processes(should_end: Callable[[str], bool]) -> tuple[int, ...]:
    ended = []
    for pid, mark in _marked_processes():
        if pid != os.getpid() and should_end(mark):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                ended.append(pid)
    return tuple(ended)


def _marked_processes() -> Iterator[tuple[int, str]]:
    variable = f"{MARK_VARIABLE}=".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):  # gone meanwhile, or of another user
            for assignment in (entry / "environ").read_bytes().split(b"\0"):
                if assignment.startswith(variable):
                    yield int(entry.name), assignment[len(variable) :].decode("ascii", "replace")


def _is_alive(mark: str) -> bool:
    pid, _, rest = mark.partition("-")
    started = rest.partition("-")[0]
    return pid.isdecimal() and _start_time(int(pid)) == started


def _start_time(pid: int) -> str | None:
    """Return when a process started, in clock ticks since boot, or None if there is no such process."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[19]
    return None
