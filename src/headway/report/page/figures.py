"""A figure as data: what Plotly draws, and what it shows in words. Colours are variables of the style sheet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.report.page.words import known

Trace = dict[str, Any]
Layout = dict[str, Any]
Column = list[float | None]

ALWAYS = "all"
_WIDE = 8.0
"""A range so many times its smallest value is shown on a log scale."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Traces and a layout for Plotly, and the same in words for those who cannot see it."""

    data: Sequence[Trace]
    layout: Layout
    alt: str

    def as_dict(self) -> dict[str, Any]:
        """Return it for the page."""
        return {"data": list(self.data), "layout": self.layout, "alt": self.alt}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Figures of which a page shows one at a time.

    Args:
        by: What a reader chooses by: "run", "against", or nothing at all.
        options: The figure for each answer; one that is not there has no data.
    """

    by: str | None
    options: Mapping[str, Figure]

    def as_dict(self) -> dict[str, Any]:
        """Return it for the page."""
        return {"by": self.by, "options": {name: figure.as_dict() for name, figure in self.options.items()}}


def single(figure: Figure | None) -> Choice:
    """Return the choice of a figure that is always the same one."""
    return Choice(by=None, options={} if figure is None else {ALWAYS: figure})


def scale_of(values: Iterable[float | None]) -> str:
    """Return the type of an axis: "log" where values are far apart, so that small ones can be seen.

    >>> scale_of([1, 2, None]), scale_of([1, 100])
    ('linear', 'log')
    """
    positive = [value for value in known(values) if value > 0]
    return "log" if positive and max(positive) > _WIDE * min(positive) else "linear"


def axis_of(values: Iterable[float | None]) -> Layout:
    """Return an axis for values: from zero, or on a log scale with ticks that people can read."""
    values = list(values)
    if scale_of(values) == "linear":
        return {"type": "linear", "rangemode": "tozero", "nticks": 5}
    positive = [value for value in known(values) if value > 0]
    ticks = log_ticks(min(positive), max(positive))
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:,.6g}" for tick in ticks]}


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers from about ``low`` to about ``high``, not more than a small axis has room for.

    >>> log_ticks(60, 3000), log_ticks(0.2, 90)
    ([50, 100, 200, 500, 1000, 2000, 5000], [0.1, 0.3, 1, 3, 10, 30, 100])
    """
    decades = math.log10(high / low)
    digits = (1, 2, 5) if decades < 2 else (1, 3) if decades < 3 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{digit}e{power}") for power in powers for digit in digits]
    first = max((tick for tick in ticks if tick <= low), default=ticks[0])
    last = min((tick for tick in ticks if tick >= high), default=ticks[-1])
    return [int(tick) if tick >= 1 else tick for tick in ticks if first <= tick <= last]


def seconds_unit(values: Iterable[float | None]) -> tuple[str, float]:
    """Return the unit in which times read best, and the factor to it.

    >>> seconds_unit([0.05, 0.2]), seconds_unit([3.0, 0.5, 12.0])
    (('ms', 1000.0), ('s', 1.0))
    """
    return ("s", 1.0) if max(known(values), default=0.0) >= 2 else ("ms", 1e3)


def bytes_unit(values: Iterable[float | None]) -> tuple[str, float]:
    """Return the unit in which bytes read best, and the factor to it.

    >>> bytes_unit([2e9, 10.0])
    ('GB', 1e-09)
    """
    most = max(known(values), default=0.0)
    return next(
        ((unit, factor) for unit, factor in (("GB", 1e-9), ("MB", 1e-6), ("kB", 1e-3)) if most * factor >= 1),
        ("B", 1.0),
    )
