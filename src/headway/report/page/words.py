"""Numbers and text as a page shows them."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Iterable
from typing import Any

_LONGEST_NAME = 28
_HOVER_WIDTH = 46
_DIGITS = 5


def format_time(seconds: float) -> str:
    """Return how long training took, for people.

    >>> format_time(0.0213), format_time(42.24), format_time(129.7), format_time(7325)
    ('21.3 ms', '42.2 s', '2 min 10 s', '2 h 2 min')
    """
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 99.5:
        return f"{seconds:.3g} s"
    minutes, rest_s = divmod(round(seconds), 60)
    return f"{minutes} min {rest_s} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_times(factor: float) -> str:
    """Return a speed-up for people.

    >>> format_times(11.78), format_times(1), format_times(123.4)
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
    """Return text as a plot shows it letter by letter: plots read a little HTML, and a run may have any name."""
    return html.escape(text, quote=False)


def plot_name(text: str) -> str:
    """Return a name, cut so that a legend has room for it."""
    return plot_text(text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 1] + "…")


def hover_text(text: str) -> str:
    """Return a sentence in lines, as a plot shows it."""
    return "<br>".join(plot_text(line) for line in textwrap.wrap(text, _HOVER_WIDTH))


def number(value: Any) -> float | None:
    """Return a number of an event with as many digits as can be seen, or None.

    >>> number(0.123456789), number(None), number("?"), number(1663370)
    (0.12346, None, None, 1663400.0)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(f"{value:.{_DIGITS}g}")


def numbers(values: Iterable[Any], factor: float = 1.0) -> list[float | None]:
    """Return numbers in another unit; what is not known stays None."""
    return [None if value is None else number(factor * value) for value in values]


def known(values: Iterable[float | None]) -> list[float]:
    """Return those that are known."""
    return [value for value in values if value is not None]
