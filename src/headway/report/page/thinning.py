"""Curves with fewer points than steps: a thousand points look the same as a million."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from headway.report.events import Event
from headway.report.page.figures import Column, number

MOST_POINTS = 1000
"""The most points of a curve, unless the plan changes more often."""
_MEANS = (
    *("step_s", "loss", "ratio", "gain", "latency_s", "bandwidth_bps"),
    *("local_steps", "agreement"),
)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The steps of a run as columns; a point is one step, or the mean of a few steps with the same plan."""

    steps_each: int
    """The most steps in a point."""
    step: list[int]
    """The last step of the point."""
    start_s: list[float]
    time_s: list[float]
    """When the last step ended."""
    plan: list[str]
    exchange: list[str]
    sent_bytes: list[float]
    """The bytes sent since training began."""
    slowest_s: Column
    step_s: Column
    loss: Column
    ratio: Column
    gain: Column
    latency_s: Column
    bandwidth_bps: Column
    local_steps: Column
    agreement: Column
    wire_bytes: Column
    """The bytes of a step: its share, if an exchange is for several."""
    exchange_bytes: Column
    """The bytes of an exchange."""

    def has(self, column: str) -> bool:
        """Return whether any value of a column is known."""
        return any(value is not None for value in getattr(self, column))


def thin(steps: Sequence[Event], most: int = MOST_POINTS) -> Curve:
    """Return the curve of a run's steps, of about ``most`` points; no point is a mean over two plans."""
    size = max(1, math.ceil(len(steps) / most))
    points = [_point(window) for window in _windows(steps, size)]
    columns = {column.name: [point[column.name] for point in points] for column in fields(Curve)[1:]}
    columns["sent_bytes"] = list(itertools.accumulate(columns["sent_bytes"]))
    return Curve(steps_each=size, **columns)


def known_of(steps: Iterable[Event], name: str) -> list[float]:
    """Return the known values of a field."""
    return [float(step[name]) for step in steps if number(step.get(name)) is not None]


def exchange_of_step(step: Event) -> str:
    """Return the name of a step's exchange; a run of an older version has only the label of the plan."""
    return str(step.get("exchange") or step.get("plan") or "not known")


def _windows(steps: Sequence[Event], size: int) -> Iterator[list[Event]]:
    for _, same in itertools.groupby(steps, key=lambda step: (step.get("exchange"), step.get("plan"))):
        plan_steps = list(same)
        for first in range(0, len(plan_steps), size):
            yield plan_steps[first : first + size]


def _point(window: Sequence[Event]) -> dict[str, Any]:
    """Return the values of a point, with the bytes sent in it alone."""
    first, last = window[0], window[-1]
    sent_bytes, num_exchanges = (sum(known_of(window, name)) for name in ("wire_bytes", "num_exchanges"))
    return {
        "step": last["step"],
        "start_s": number(first["time_s"] - (number(first.get("step_s")) or 0.0)) or 0.0,
        "time_s": number(last["time_s"]) or 0.0,
        "plan": str(last.get("plan") or ""),
        "exchange": exchange_of_step(last),
        "sent_bytes": sent_bytes,
        "slowest_s": number(max(known_of(window, "step_s"), default=None)),
        "wire_bytes": _bytes_of_a_step(window, sent_bytes, num_exchanges),
        "exchange_bytes": number(sent_bytes / num_exchanges) if num_exchanges else None,
        **{name: _mean(known_of(window, name)) for name in _MEANS},
    }


def _bytes_of_a_step(window: Sequence[Event], sent_bytes: float, num_exchanges: float) -> float | None:
    """Return the mean bytes of a step; None where local steps have no exchange among them."""
    local_steps = max(known_of(window, "local_steps"), default=0)
    if not known_of(window, "wire_bytes") or (local_steps and not num_exchanges):
        return None
    return number(sent_bytes / max(len(window), local_steps * num_exchanges))


def _mean(values: Sequence[float]) -> float | None:
    return number(math.fsum(values) / len(values)) if values else None
