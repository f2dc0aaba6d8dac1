"""The folder of a run: making a new one, opening one to resume."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace as with_changes
from datetime import datetime
from pathlib import Path
from typing import Any

from headway.report.events import CONFIG_FILE
from headway.report.recorder import write_config
from headway.report.run import check_version, is_run, read_config, read_run
from headway.train.settings import TrainSettings

DEFAULT_PARENT = Path("runs")
_LOCK_FILE = ".lock"
JOINED = "joined"
"""The network, in the configuration, of a run whose ranks a launcher such as torchrun started."""


def default_folder(name: str) -> Path:
    """Return a new folder for a run that starts now, with a number behind its name if that is taken."""
    base = DEFAULT_PARENT / f"{datetime.now():%Y-%m-%d-%H%M%S}-{name}"
    number = 1
    folder = base
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


def make_folder(folder: Path, settings: TrainSettings, surroundings: dict[str, Any], *, replace: bool = False) -> None:
    """Make a run directory, with everything that starting or resuming the run needs.

    Args:
        folder: The folder to make.
        settings: Settings of the run.
        surroundings: Further entries of the configuration: the number of workers, the network.
        replace: Whether to replace the configuration of an existing run.

    Raises:
        ValueError: The folder holds a run already.
        OSError: The folder cannot be written.
    """
    if (folder / CONFIG_FILE).exists() and not replace:
        raise ValueError(f"{folder} holds a run already: give another folder, or continue with --resume {folder}")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: give a folder")
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    write_config(folder, {**settings.as_dict(), **surroundings})


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a run directory against other launchers; the lock ends with the process.

    Raises:
        ValueError: Another launcher has locked it.
    """
    with (folder / _LOCK_FILE).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder} is being trained in already: wait for it, or stop it first") from None
        yield


def open_folder(folder: Path) -> dict[str, Any]:
    """Return the configuration of a run to resume.

    Raises:
        ValueError: It is not a run directory of this version, or was not made by ``headway train``.
    """
    check_version(folder, needs_events=False)
    config = read_config(folder)
    if not (isinstance(config.get("workers"), int) and {"method", "network"} <= set(config)):
        raise ValueError(f"{folder} was not made by headway train: it cannot be resumed")
    return config


def settings_of(config: dict[str, Any], path: Path, steps: int | None = None) -> TrainSettings:
    """Return the settings in a configuration, which is in a file, with another number of steps if given.

    Raises:
        ValueError: They are damaged, or the number of steps is impossible.
    """
    try:
        settings = TrainSettings.from_dict(config)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): start a new run") from None
    return settings if steps is None else with_changes(settings, steps=steps)


def has_finished(folder: Path, settings: TrainSettings) -> bool:
    """Return whether a run has done all steps of its settings."""
    if not is_run(folder):
        return False
    run = read_run(folder)
    return len(run.steps) >= (settings.steps or run.start["num_steps"])


def check_unfinished(folder: Path, settings: TrainSettings) -> None:
    """Raise `ValueError` if a run has done all steps of its settings."""
    if has_finished(folder, settings):
        num_steps = len(read_run(folder).steps)
        raise ValueError(f"{folder} has finished its {num_steps} steps: give a larger --steps to continue")
