"""The folder of a run: making one, finding one to go on with."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from headway.report.events import CONFIG_FILE
from headway.report.finding import is_run
from headway.report.recorder import write_config
from headway.report.run import check_version, read_config, read_run
from headway.train.settings import Settings

DEFAULT_PARENT = Path("runs")
_LOCK_FILE = ".lock"
JOINED = "joined"
"""The network of a run whose ranks somebody else has started."""


def default_folder(name: str) -> Path:
    """Return a folder for a run that starts now; one that is there already gets a number behind its name."""
    base = DEFAULT_PARENT / f"{datetime.now():%Y-%m-%d-%H%M%S}-{name}"
    number = 1
    folder = base
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


def make_folder(folder: Path, settings: Settings, surroundings: dict[str, Any], *, replace: bool = False) -> None:
    """Make a run directory, with all that is needed to start the run, and to start it again.

    Args:
        folder: Where to.
        settings: Of the run.
        surroundings: What else the configuration keeps: the number of workers, the network.
        replace: Whether the configuration of a run that is there may be replaced.

    Raises:
        ValueError: There is a run already.
        OSError: The folder cannot be written.
    """
    if (folder / CONFIG_FILE).exists() and not replace:
        raise ValueError(f"{folder} holds a run already: give another folder, or go on with --resume {folder}")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: give a folder")
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    write_config(folder, {**settings.as_dict(), **surroundings})


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other launchers out of a run directory, as long as this lasts; a launcher that is killed keeps out nobody.

    Raises:
        ValueError: Another one is at work.
    """
    with (folder / _LOCK_FILE).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder} is being trained in already: wait for it, or stop it first") from None
        yield


def open_folder(folder: Path) -> dict[str, Any]:
    """Return the configuration of a run to go on with; one without a checkpoint begins anew.

    Raises:
        ValueError: It is no run directory of this version, or was not made by ``headway train``.
    """
    check_version(folder, needs_events=False)
    config = read_config(folder)
    if not (isinstance(config.get("workers"), int) and {"method", "network"} <= set(config)):
        raise ValueError(f"{folder} was not made by headway train: there is nothing to go on with")
    return config


def settings_of(config: dict[str, Any], path: Path) -> Settings:
    """Return the settings in a configuration, which is in a file.

    Raises:
        ValueError: They are damaged.
    """
    try:
        return Settings.from_dict(config)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): train anew") from None


def has_finished(folder: Path, settings: Settings) -> bool:
    """Return whether a run has all the steps that are wanted of it."""
    if not is_run(folder):
        return False
    run = read_run(folder)
    return len(run.steps) >= (settings.steps or run.start["num_steps"])


def check_unfinished(folder: Path, settings: Settings) -> None:
    """Raise `ValueError` if a run has all its steps."""
    if has_finished(folder, settings):
        num_steps = len(read_run(folder).steps)
        raise ValueError(f"{folder} has finished its {num_steps} steps: give --steps with more of them to go on")
