"""Quantities as people write them: ``20ms``, ``100mbps``, ``25.6M``."""

from __future__ import annotations

import math
import re

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_BITS_PER_SECOND = {"bps": 1.0, "kbps": 1e3, "mbps": 1e6, "gbps": 1e9, "tbps": 1e12}
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-z%µ]*)\s*", re.IGNORECASE)


def parse_duration_s(text: str) -> float:
    """Return seconds.

    >>> parse_duration_s("20ms"), parse_duration_s("1.5 min")
    (0.02, 90.0)
    """
    return _parse(text, _SECONDS, "a duration", "20ms")


def parse_rate_bps(text: str) -> float:
    """Return bits per second.

    >>> parse_rate_bps("100mbps"), parse_rate_bps("1 Gbps")
    (100000000.0, 1000000000.0)
    """
    return _parse(text, _BITS_PER_SECOND, "a bandwidth", "100mbps")


def parse_count(text: str) -> int:
    """Return a whole number.

    >>> parse_count("25.6M")
    25600000
    """
    return round(_parse(text, _COUNTS, "a count", "25.6M"))


def parse_share(text: str) -> float:
    """Return a share between 0 and 1.

    >>> parse_share("2%"), parse_share("0.02")
    (0.02, 0.02)
    """
    share = _parse(text, {"": 1.0, "%": 0.01}, "a share", "2%")
    if share > 1:
        raise ValueError(f"{text!r} is too large: a share is at most 100%")
    return share


def format_duration(seconds: float) -> str:
    """Return a duration as text.

    >>> format_duration(0.02), format_duration(0.0015), format_duration(75)
    ('20 ms', '1.5 ms', '75 s')
    """
    unit, factor = ("s", 1.0) if seconds >= 1 else ("ms", 1e-3) if seconds >= 1e-3 or seconds == 0 else ("µs", 1e-6)
    return f"{seconds / factor:.3g} {unit}"


def format_rate(bits_per_second: float) -> str:
    """Return a bandwidth as text.

    >>> format_rate(1e9), format_rate(40e6), format_rate(float("inf"))
    ('1 Gbps', '40 Mbps', 'unlimited')
    """
    if math.isinf(bits_per_second):
        return "unlimited"
    for unit, factor in (("Gbps", 1e9), ("Mbps", 1e6), ("kbps", 1e3)):
        if bits_per_second >= factor:
            return f"{bits_per_second / factor:.3g} {unit}"
    return f"{bits_per_second:.3g} bps"


def format_bytes(number: float) -> str:
    """Return a number of bytes as text.

    >>> format_bytes(116_173_522), format_bytes(74_900), format_bytes(12)
    ('116 MB', '74.9 kB', '12 B')
    """
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number:.0f} B"


def format_clock(seconds: float) -> str:
    """Return minutes and seconds, as a clock shows them.

    >>> format_clock(75.2), format_clock(3725)
    ('1:15', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _parse(text: str, units: dict[str, float], what: str, example: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2].lower().replace("µ", "u") not in units:
        known = ", ".join(unit for unit in units if unit)
        raise ValueError(f"{text!r} is not {what} such as {example}: a number and one of {known}")
    value = float(match[1]) * units[match[2].lower().replace("µ", "u")]
    if value < 0 or not math.isfinite(value):
        raise ValueError(f"{text!r} is not {what} such as {example}: it must be finite and not negative")
    return value
