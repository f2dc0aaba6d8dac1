"""Fewer points than steps: a page shows a thousand of them as well as a million."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from headway.report.events import Event
from headway.report.page.words import number

MOST_POINTS = 1000
"""Of a curve, for as long as the plan does not change more often."""

_MEANS = ("step_s", "loss", "ratio", "gain", "latency_s", "bandwidth_bps", "wire_bytes")

Column = list[float | None]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The steps of a run as columns; a point stands for one step, or for the mean of a few with the same plan."""

    steps_each: int
    """How many a point stands for, at most."""
    step: list[int] = field(default_factory=list)
    """The last of the point."""
    start_s: list[float] = field(default_factory=list)
    time_s: list[float] = field(default_factory=list)
    """When the last step ended."""
    plan: list[str] = field(default_factory=list)
    sent_bytes: list[float] = field(default_factory=list)
    """Since training began."""
    slowest_s: list[float | None] = field(default_factory=list)
    step_s: Column = field(default_factory=list)
    loss: Column = field(default_factory=list)
    ratio: Column = field(default_factory=list)
    gain: Column = field(default_factory=list)
    latency_s: Column = field(default_factory=list)
    bandwidth_bps: Column = field(default_factory=list)
    wire_bytes: Column = field(default_factory=list)
    """Of a step."""
    exchange_bytes: Column = field(default_factory=list)
    """Of an exchange."""

    def has(self, column: str) -> bool:
        """Return whether anything is known of a column."""
        return any(value is not None for value in getattr(self, column))


def thin(steps: Sequence[Event], most: int = MOST_POINTS) -> Curve:
    """Return the curve of a run's steps, of about ``most`` points; no point is a mean over two plans."""
    size = max(1, math.ceil(len(steps) / most))
    curve = Curve(steps_each=size)
    sent_bytes = 0.0
    for window in _windows(steps, size):
        sent_bytes += sum(known_of(window, "wire_bytes"))
        _append(curve, window)
        curve.sent_bytes.append(sent_bytes)
    return curve


def known_of(steps: Iterable[Event], name: str) -> list[float]:
    """Return the known values of a field."""
    return [float(step[name]) for step in steps if number(step.get(name)) is not None]


def _windows(steps: Sequence[Event], size: int) -> Iterator[list[Event]]:
    for _, same in itertools.groupby(steps, key=lambda step: step.get("plan")):
        plan_steps = list(same)
        for first in range(0, len(plan_steps), size):
            yield plan_steps[first : first + size]


def _append(curve: Curve, window: Sequence[Event]) -> None:
    first, last = window[0], window[-1]
    curve.step.append(last["step"])
    curve.start_s.append(number(first["time_s"] - (number(first.get("step_s")) or 0.0)) or 0.0)
    curve.time_s.append(number(last["time_s"]) or 0.0)
    curve.plan.append(str(last.get("plan") or ""))
    curve.slowest_s.append(number(max(known_of(window, "step_s"), default=None)))
    for name in _MEANS:
        getattr(curve, name).append(_mean(known_of(window, name)))
    num_exchanges = sum(known_of(window, "num_exchanges"))
    curve.exchange_bytes.append(number(sum(known_of(window, "wire_bytes")) / num_exchanges) if num_exchanges else None)


def _mean(values: Sequence[float]) -> float | None:
    return number(math.fsum(values) / len(values)) if values else None
