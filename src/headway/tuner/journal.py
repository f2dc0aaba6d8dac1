"""The event log of a run: a line of JSON for each decision."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path

from headway.tuner.decision import Decision

_LOGGER = logging.getLogger("headway")


class Journal:
    """Writes decisions to a file as they come, and tells the logger "headway" of each in plain words.

    Args:
        path: The file, which is added to; None for the logger alone.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self._path = None if path is None else Path(path)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a"):
                pass  # whatever is wrong with it is better known now

    def note(self, decision: Decision) -> None:
        """Write a decision down."""
        _LOGGER.info("%s", decision.words)
        if self._path is None:
            return
        try:
            with self._path.open("a") as lines:
                lines.write(json.dumps(decision.as_dict()) + "\n")
        except OSError as error:  # training goes on without it
            warnings.warn(f"decisions are no longer written to {self._path}: {error}", stacklevel=2)
            self._path = None
