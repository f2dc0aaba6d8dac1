"""Where the time of a step goes, by run and by rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from headway.report.events import Event
from headway.report.page.figures import Figure, format_time, numbers, seconds_unit, stacked_bars
from headway.report.page.styled_runs import StyledRun
from headway.report.page.thinning import known_of

PARTS = {
    "own": "computation",
    "compress": "compression",
    "wait": "waiting for other ranks",
    "transfer": "sending and receiving",
    "whole": "unknown",
}
"""The parts of a step. Exchange time that overlaps with the backward pass counts too; computation is the rest of the
step. How long plain DDP waits is unknown."""
_MEASURED = ("compress", "wait", "transfer")

Parts = dict[str, float]
"""Seconds of a step, by part."""


def draw_parts(runs: Sequence[StyledRun]) -> Figure | None:
    """Return a bar for each run: the mean over its ranks, or rank 0 if there is no data of the others."""
    bars = {run.plot_name: parts for run in runs if (parts := parts_of_run(run))}
    return _draw(bars, "time of a step by run") if bars else None


def draw_ranks(run: StyledRun) -> Figure | None:
    """Return a bar for each rank of a run."""
    bars = {f"rank {rank}": parts for rank, parts in enumerate(parts_of_ranks(run))}
    return _draw(bars, f"time of a step of {run.label}") if bars else None


def parts_of_run(run: StyledRun) -> Parts | None:
    """Return the parts of a run's mean step."""
    ranks = parts_of_ranks(run)
    if ranks:
        return {part: math.fsum(parts[part] for parts in ranks) / len(ranks) for part in PARTS}
    steps = run.record.steps
    seconds = {part: math.fsum(known_of(steps, f"{part}_s")) for part in (*_MEASURED, "step")}
    return _parts(seconds, len(steps)) if any(seconds[part] for part in _MEASURED) else None


def parts_of_ranks(run: StyledRun) -> list[Parts]:
    """Return the parts of each rank's mean step, or nothing if there is no data by rank."""
    events = [event for event in run.record.ranks if _is_complete(event)]
    if not events:
        return []
    num_ranks = min(len(event["step_s"]) for event in events)
    num_steps = sum(int(event.get("num_steps") or 0) for event in events)
    totals = [
        {part: math.fsum(event[f"{part}_s"][rank] or 0.0 for event in events) for part in (*_MEASURED, "step")}
        for rank in range(num_ranks)
    ]
    return [_parts(seconds, num_steps) for seconds in totals]


def _is_complete(event: Event) -> bool:
    return all(isinstance(event.get(f"{part}_s"), list) for part in (*_MEASURED, "step"))


def _parts(seconds: Mapping[str, float], num_steps: int) -> Parts:
    each = {name: value / max(num_steps, 1) for name, value in seconds.items()}
    measured = {part: each[part] for part in _MEASURED}
    rest_s = max(0.0, each["step"] - sum(measured.values()))
    is_known = any(measured.values())
    return {"own": rest_s if is_known else 0.0, **measured, "whole": 0.0 if is_known else rest_s}


def _draw(bars: Mapping[str, Parts], title: str) -> Figure:
    unit, factor = seconds_unit(sum(parts.values()) for parts in bars.values())
    parts = [
        {
            "name": name,
            "x": numbers((parts[part] for parts in bars.values()), factor),
            "marker": {"color": f"var(--part-{part})"},
        }
        for part, name in PARTS.items()
        if part != "whole" or any(parts[part] for parts in bars.values())
    ]
    waits = ", ".join(f"{name} waits {format_time(parts['wait'])}" for name, parts in bars.items())
    return stacked_bars(list(bars), parts, quantity="mean step", unit=unit, alt=f"{title}: {waits}")
