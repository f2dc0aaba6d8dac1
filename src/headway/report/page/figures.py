"""Figures as data for Plotly, and the numbers, units and text in them. Colours are variables of the style sheet."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Trace = dict[str, Any]
Layout = dict[str, Any]
Column = list[float | None]

ALWAYS = "all"
_WIDE = 8.0
"""A larger ratio of the largest to the smallest value is shown on a log scale."""
_BAR_PX = 40
_LONGEST_NAME = 28
_HOVER_WIDTH = 46
_DIGITS = 5


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Traces and a layout for Plotly, and a text alternative for screen readers."""

    data: Sequence[Trace]
    layout: Layout
    alt: str


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Alternative figures, of which a page shows one at a time.

    Args:
        by: What the reader chooses: "run", "against" (the horizontal axis), or None for a single figure.
        options: The figure for each choice; choices without data are missing.
    """

    by: str | None
    options: Mapping[str, Figure]

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return {"by": self.by, "options": {name: vars(figure) for name, figure in self.options.items()}}


def single(figure: Figure | None) -> Choice:
    """Return a choice of one figure, or of none."""
    return Choice(by=None, options={} if figure is None else {ALWAYS: figure})


def stacked_bars(rows: Sequence[str], parts: Sequence[Trace], *, quantity: str, unit: str, alt: str) -> Figure:
    """Return a horizontal bar for each row, of parts that have a name, a marker and an ``x`` for each row."""
    hover = f"%{{y}}: %{{x:.3~g}} {unit}<extra>%{{fullData.name}}</extra>"
    data = [{"type": "bar", "orientation": "h", "y": list(rows), "hovertemplate": hover, **part} for part in parts]
    layout = {
        "height": 80 + _BAR_PX * len(rows),
        "barmode": "stack",
        "xaxis": {"title": {"text": f"{quantity}, {unit}"}},
        "yaxis": {"autorange": "reversed", "type": "category", "showgrid": False},
        "hovermode": "closest",
    }
    return Figure(data=data, layout=layout, alt=alt)


def scale_of(values: Iterable[float | None]) -> str:
    """Return the type of an axis: "log" if values are far apart, so that small ones are visible.

    >>> scale_of([1, 2, None]), scale_of([1, 100])
    ('linear', 'log')
    """
    positive = [value for value in known(values) if value > 0]
    return "log" if positive and max(positive) > _WIDE * min(positive) else "linear"


def axis_of(values: Iterable[float | None]) -> Layout:
    """Return an axis for values: from zero, or on a log scale with round ticks."""
    values = list(values)
    if scale_of(values) == "linear":
        return {"type": "linear", "rangemode": "tozero", "nticks": 5}
    positive = [value for value in known(values) if value > 0]
    ticks = log_ticks(min(positive), max(positive))
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:,.6g}" for tick in ticks]}


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers from about ``low`` to about ``high``, few enough for a small axis.

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
    """Return a readable unit for times, and the factor to convert seconds to it.

    >>> seconds_unit([0.05, 0.2]), seconds_unit([3.0, 0.5, 12.0])
    (('ms', 1000.0), ('s', 1.0))
    """
    return ("s", 1.0) if max(known(values), default=0.0) >= 2 else ("ms", 1e3)


def bytes_unit(values: Iterable[float | None]) -> tuple[str, float]:
    """Return a readable unit for traffic, and the factor to convert bytes to it.

    >>> bytes_unit([2e9, 10.0])
    ('GB', 1e-09)
    """
    most = max(known(values), default=0.0)
    return next(
        ((unit, factor) for unit, factor in (("GB", 1e-9), ("MB", 1e-6), ("kB", 1e-3)) if most * factor >= 1),
        ("B", 1.0),
    )


def format_time(seconds: float) -> str:
    """Return a training time for people.

    >>> format_time(0.0213), format_time(42.24), format_time(129.7), format_time(7325)
    ('21.3 ms', '42.2 s', '2 min 10 s', '2 h 2 min')
    """
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 99.5:
        return f"{seconds:.3g} s"
    minutes, rest_s = divmod(round(seconds), 60)
    return f"{minutes} min {rest_s} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_speedup(factor: float) -> str:
    """Return a speed-up for people.

    >>> format_speedup(11.78), format_speedup(1), format_speedup(123.4)
    ('11.8×', '1×', '123×')
    """
    return f"{factor:.3g}×" if factor < 100 else f"{factor:.0f}×"


def format_share(share: float) -> str:
    """Return a share in per cent.

    >>> format_share(0.8706), format_share(1), format_share(0.9996)
    ('87.1%', '100%', '99.96%')
    """
    return f"{100 * share:.4g}%" if 0.999 < share < 1 else f"{100 * share:.3g}%"


def plot_text(text: str) -> str:
    """Return text with HTML escaped: Plotly interprets some HTML, and a run may have any name."""
    return html.escape(text, quote=False)


def plot_name(text: str) -> str:
    """Return a name short enough for a legend."""
    return plot_text(text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 1] + "…")


def hover_text(text: str) -> str:
    """Return a sentence broken into lines, for a hover label."""
    return "<br>".join(plot_text(line) for line in textwrap.wrap(text, _HOVER_WIDTH))


def number(value: Any) -> float | None:
    """Return a number of an event with the digits that a plot can show; None if it is not a finite number.

    >>> number(0.123456789), number(None), number("?"), number(1663370)
    (0.12346, None, None, 1663400.0)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(f"{value:.{_DIGITS}g}")


def numbers(values: Iterable[Any], factor: float = 1.0) -> list[float | None]:
    """Return numbers in another unit; None stays None."""
    return [None if value is None else number(factor * value) for value in values]


def known(values: Iterable[float | None]) -> list[float]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]
