"""Pictures: small ones in the terminal, and checks for those in files."""

from __future__ import annotations

import errno
import importlib.util
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.table import Table

from headway.lab import Scenario
from headway.lab.links import LinkTable, link_table
from headway.units import format_duration, format_rate

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 24
_NUM_HOSTS = 4


def sparkline(values: Sequence[float]) -> str:
    """Return bars for positive values, on a log scale.

    >>> sparkline([1, 10, 100])
    '▁▅█'
    """
    logs = [math.log10(max(value, 1e-9)) for value in values]
    low, span = min(logs), max(logs) - min(logs)
    if span == 0:
        return _BARS[3] * len(logs)
    return "".join(_BARS[math.ceil((log - low) / span * (len(_BARS) - 1) - 1e-9)] for log in logs)


def scenario_table(scenarios: Sequence[Scenario]) -> Table:
    """Return a table of scenarios: latency and bandwidth over time, and their range over time and pairs of hosts."""
    table = Table("scenario", "latency", "bandwidth", "description", show_lines=True)
    for scenario in scenarios:
        tables = [link_table(scenario, _NUM_HOSTS, scenario.phase_at(moment, None)) for moment in _moments(scenario)]
        table.add_row(
            scenario.name,
            _picture(tables, lambda links: links.latency_s, format_duration),
            _picture(tables, lambda links: links.bandwidth_bps(), format_rate),
            scenario.description,
        )
    return table


def _picture(
    tables: Sequence[LinkTable], what: Callable[[LinkTable], npt.NDArray[np.float64]], show: Callable[[float], str]
) -> str:
    """Return a sparkline of the mean over pairs of hosts, and the range below it."""
    pairs = ~np.eye(_NUM_HOSTS, dtype=bool)
    values = [what(links)[pairs] for links in tables]
    low, high = show(float(np.min(values))), show(float(np.max(values)))
    line = sparkline([float(np.mean(moment)) for moment in values])
    return f"{line}\n{low if low == high else f'{low} to {high}'}"


def _moments(scenario: Scenario) -> list[float]:
    """Return moments from the start of the scenario to a little after its last change."""
    changes = [when.at_s or 0.0 for phase in scenario.phases for when in (phase.start, phase.end) if when is not None]
    span = max(changes, default=0.0) * (1 + 1 / max(len(scenario.phases), 1)) or 1.0
    return [span * (i + 0.5) / _WIDTH for i in range(_WIDTH)]


def check_picture(path: Path, flag: str, suffixes: Sequence[str]) -> None:
    """Raise `ValueError` or `OSError`, before minutes of work, if a picture cannot be drawn or written."""
    if path.suffix not in suffixes:
        raise ValueError(f"{flag} is {path}, but must end in one of {', '.join(suffixes)}")
    library = "plotly" if path.suffix == ".html" else "matplotlib"
    if importlib.util.find_spec(library) is None:
        raise ValueError(f"{flag} needs {library}: pip install 'headway[plot]'")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
