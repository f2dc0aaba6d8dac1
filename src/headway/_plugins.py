"""Modules of the user's that register exchanges, algorithms or topologies, imported before a command runs."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

VARIABLE = "HEADWAY_PLUGINS"
"""Passes the names on to the workers that a command starts."""


def load_plugins(names: Sequence[str] = ()) -> None:
    """Import modules, from the current folder too: those that this process inherited, and others by name.

    The workers that this process starts import them too.

    Raises:
        ValueError: A module cannot be imported; the message says why.
    """
    wanted = list(dict.fromkeys([*filter(None, os.environ.get(VARIABLE, "").split(",")), *names]))
    if not wanted:
        return
    os.environ[VARIABLE] = ",".join(wanted)
    if "" not in sys.path:
        sys.path.insert(0, "")
    for name in wanted:
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever the user's code raises is the user's to fix
            raise ValueError(f"plugin {name}: {type(error).__name__}: {error}") from error
