"""Where the time of a step goes, in each run and on each rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from headway.report.events import Event
from headway.report.page.figures import Figure, seconds_unit
from headway.report.page.shown import Shown
from headway.report.page.thinning import known_of
from headway.report.page.words import format_time, numbers

PARTS = {
    "own": "own computing",
    "compress": "compressing",
    "wait": "waiting for others",
    "transfer": "sending and receiving",
    "whole": "not told apart",
}
"""Of a step. What hides behind the backward pass is counted as well, and own computing is the rest of the step.
What plain DDP waits for is not known."""
_MEASURED = ("compress", "wait", "transfer")
_BAR_PX = 34

Parts = dict[str, float]
"""Seconds of a step, by part."""


def draw_parts(runs: Sequence[Shown]) -> Figure | None:
    """Return a bar for each run: the mean over its ranks, or rank 0 where nothing is known of the others."""
    bars = {shown.plot_name: parts for shown in runs if (parts := parts_of_run(shown))}
    return _draw(bars, "time of a step by run") if bars else None


def draw_ranks(shown: Shown) -> Figure | None:
    """Return a bar for each rank of a run."""
    ranks = parts_of_ranks(shown)
    return (
        _draw({f"rank {rank}": parts for rank, parts in enumerate(ranks)}, f"time of a step of {shown.label}")
        if ranks
        else None
    )


def parts_of_run(shown: Shown) -> Parts | None:
    """Return the parts of a run's mean step."""
    ranks = parts_of_ranks(shown)
    if ranks:
        return {part: math.fsum(parts[part] for parts in ranks) / len(ranks) for part in PARTS}
    steps = shown.run.steps
    seconds = {part: math.fsum(known_of(steps, f"{part}_s")) for part in (*_MEASURED, "step")}
    return _parts(seconds, len(steps)) if any(seconds[part] for part in _MEASURED) else None


def parts_of_ranks(shown: Shown) -> list[Parts]:
    """Return the parts of each rank's mean step, or nothing where nothing is known of ranks."""
    events = [event for event in shown.run.ranks if _is_whole(event)]
    if not events:
        return []
    num_ranks = min(len(event["step_s"]) for event in events)
    num_steps = sum(int(event.get("num_steps") or 0) for event in events)
    totals = [
        {part: math.fsum(event[f"{part}_s"][rank] or 0.0 for event in events) for part in (*_MEASURED, "step")}
        for rank in range(num_ranks)
    ]
    return [_parts(seconds, num_steps) for seconds in totals]


def _is_whole(event: Event) -> bool:
    return all(isinstance(event.get(f"{part}_s"), list) for part in (*_MEASURED, "step"))


def _parts(seconds: Mapping[str, float], num_steps: int) -> Parts:
    each = {name: value / max(num_steps, 1) for name, value in seconds.items()}
    measured = {part: each[part] for part in _MEASURED}
    rest_s = max(0.0, each["step"] - sum(measured.values()))
    is_told = any(measured.values())
    return {"own": rest_s if is_told else 0.0, **measured, "whole": 0.0 if is_told else rest_s}


def _draw(bars: Mapping[str, Parts], what: str) -> Figure:
    unit, factor = seconds_unit(sum(parts.values()) for parts in bars.values())
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": list(bars),
            "x": numbers((parts[part] for parts in bars.values()), factor),
            "marker": {"color": f"var(--part-{part})"},
            "hovertemplate": f"%{{y}}: %{{x:.3~g}} {unit}<extra>%{{fullData.name}}</extra>",
        }
        for part, name in PARTS.items()
        if part != "whole" or any(parts[part] for parts in bars.values())
    ]
    layout = {
        "height": 80 + _BAR_PX * len(bars),
        "barmode": "stack",
        "xaxis": {"title": {"text": f"mean step, {unit}"}},
        "yaxis": {"autorange": "reversed", "type": "category", "showgrid": False},
        "hovermode": "closest",
    }
    waits = ", ".join(f"{name} waits {format_time(parts['wait'])}" for name, parts in bars.items())
    return Figure(data=data, layout=layout, alt=f"{what}: {waits}")
