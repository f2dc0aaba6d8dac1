"""How exchanges look in reports: label, order, colour and marker, from their descriptions."""

from __future__ import annotations

import colorsys
import zlib
from collections.abc import Iterable

from headway.exchange import EXCHANGES, Description

RGB = tuple[float, float, float]

SATURATION = 0.62
_GREY_SATURATION = 0.08
_NUM_OTHERS = 3
"""Colours of the style sheet for exchanges that are not registered."""
_SYMBOLS = (
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "triangle-down",
    "cross",
    "x",
    "pentagon",
    "star",
    "hourglass",
)
_OTHER_SYMBOL = "hexagon"
_LIGHT_PANEL, _DARK_PANEL = "#ffffff", "#171e27"
"""The style sheet's ``--panel`` in light and in dark."""


def describe(name: str) -> Description | None:
    """Return the description of an exchange, or None if it is not registered."""
    return EXCHANGES[name].description if name in EXCHANGES else None


def label_of(name: str) -> str:
    """Return the name for people; an exchange that is not registered keeps the name that it has.

    >>> label_of("star_topk"), label_of("gossip choco, ring, 4 bits")
    ('STAR top-k', 'gossip choco, ring, 4 bits')
    """
    description = describe(name)
    return name if description is None else description.label


def in_order(names: Iterable[str]) -> list[str]:
    """Return each name once: registered exchanges in order of registration, then all others by name."""
    found = set(names)
    return [name for name in EXCHANGES if name in found] + sorted(found - EXCHANGES.keys())


def colour_of(name: str) -> str:
    """Return the colour of an exchange on a page: a variable of the style sheet.

    >>> colour_of("star_topk")
    'var(--exchange-star_topk)'
    """
    if name in EXCHANGES:
        return f"var(--exchange-{name})"
    return f"var(--other-{zlib.crc32(name.encode()) % _NUM_OTHERS})"


def symbol_of(name: str) -> str:
    """Return the marker of an exchange, for readers who do not see its colour."""
    return _SYMBOLS[list(EXCHANGES).index(name) % len(_SYMBOLS)] if name in EXCHANGES else _OTHER_SYMBOL


def style_sheet() -> str:
    """Return CSS with a variable for the colour of each registered exchange, in light and in dark."""
    light, dark = (
        "".join(f" --exchange-{name}: {_colour(each.description, is_dark)};" for name, each in EXCHANGES.items())
        for is_dark in (False, True)
    )
    return f":root {{{light} }}\n@media (prefers-color-scheme: dark) {{ :root {{{dark} }} }}\n"


def _colour(description: Description, is_dark: bool) -> str:
    """Return the colour of an exchange; variants of another one stand out more, so that near hues differ."""
    if description.hue is None:
        return _with_contrast(0.58, _GREY_SATURATION, *((_DARK_PANEL, 3.6) if is_dark else (_LIGHT_PANEL, 2.5)))
    is_variant = description.variant_of is not None
    if is_dark:
        return _with_contrast(description.hue, SATURATION, _DARK_PANEL, 5.0 if is_variant else 8.0)
    return _with_contrast(description.hue, SATURATION, _LIGHT_PANEL, 5.5 if is_variant else 3.0)


def _with_contrast(hue: float, saturation: float, background: str, ratio: float) -> str:
    """Return the colour of a hue whose contrast to a background, as WCAG defines it, is ``ratio``."""
    behind = luminance(_parse(background))
    target = (behind + 0.05) * ratio - 0.05 if behind < 0.5 else (behind + 0.05) / ratio - 0.05
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        is_lighter = luminance(colorsys.hls_to_rgb(hue, middle, saturation)) > target
        low, high = (low, middle) if is_lighter else (middle, high)
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, low, saturation))


def luminance(colour: RGB) -> float:
    """Return the relative luminance of an sRGB colour, from 0 (black) to 1 (white)."""
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _parse(colour: str) -> RGB:
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return red, green, blue
