"""What a lab that was killed with ``kill -9`` may leave behind, and its removal.

Namespaces and devices go by themselves with the last process in them, and workers die with the launcher. What may stay
are processes that a worker had started, which carry the mark of their lab in the environment, and the lab's folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

OWNER_VARIABLE = "HEADWAY_LAB_OWNER"
FOLDER_PREFIX = "headway-lab-"
OWNER_FILE = "owner"


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """What was found and removed."""

    processes: tuple[int, ...]
    folders: tuple[Path, ...]


def owner_mark() -> str:
    """Return what names this process for good: its number, and when it started, since numbers are used again."""
    return f"{os.getpid()}:{_start_time(os.getpid())}"


def clean() -> Leftovers:
    """End the processes and remove the folders of labs whose launcher is gone; leave labs that run alone."""
    processes = tuple(pid for pid, owner in _marked_processes() if not _is_alive(owner))
    for pid in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    folders = tuple(folder for folder in _folders() if not _is_alive(_owner_of(folder)))
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return Leftovers(processes=processes, folders=folders)


def _marked_processes() -> Iterator[tuple[int, str]]:
    mark = f"{OWNER_VARIABLE}=".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):  # gone meanwhile, or somebody else's
            for variable in (entry / "environ").read_bytes().split(b"\0"):
                if variable.startswith(mark):
                    yield int(entry.name), variable[len(mark) :].decode("ascii", "replace")


def _folders() -> Iterator[Path]:
    yield from Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*")


def _owner_of(folder: Path) -> str:
    with suppress(OSError):
        return (folder / OWNER_FILE).read_text()
    return ""


def _is_alive(owner: str) -> bool:
    pid, _, started = owner.partition(":")
    return pid.isdecimal() and _start_time(int(pid)) == started


def _start_time(pid: int) -> str | None:
    """Return when a process started, in the kernel's ticks since boot, or None if there is no such process."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[19]
    return None
