"""Rows of plots above each other, on one axis of time, with the plans of a run across them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from headway.report.events import Event
from headway.report.page.figures import Figure, Layout, Trace
from headway.report.page.shown import Shown, exchange_colour, exchange_of
from headway.report.page.words import known, number

PLAN = "Plan"
"""The title of the row that has a band for each plan."""
_ROW_PX, _GAP_PX, _BELOW_PX = 104, 32, 46
_MOST_LINES = 120
"""Switches beyond which lines across all rows would hide what they cross."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A quantity over time."""

    title: str
    traces: list[Trace]
    height_px: int = _ROW_PX
    axis: Layout


def is_switch(decision: Event) -> bool:
    """Return whether a decision was for another plan."""
    return bool(decision.get("plan") != decision.get("before"))


def stack(shown: Shown, rows: list[Row]) -> Figure:
    """Put rows above each other on one axis of time."""
    inner_px = sum(row.height_px for row in rows) + _GAP_PX * len(rows)
    layout: Layout = {
        "height": inner_px + _BELOW_PX,
        "margin": {"t": 0, "b": _BELOW_PX},
        "hovermode": "x unified",
        "hoversubplots": "axis",
        "annotations": [],
        "shapes": _lines(shown, 1 - _GAP_PX / inner_px),
    }
    data: list[Trace] = []
    top_px = float(inner_px)
    for place, row in enumerate(rows, start=1):
        top_px -= _GAP_PX
        domain = [(top_px - row.height_px) / inner_px, top_px / inner_px]
        axis = f"y{place}" if place > 1 else "y"
        layout[f"yaxis{place}" if place > 1 else "yaxis"] = {**row.axis, "domain": domain, "fixedrange": True}
        layout["annotations"].append(_heading(row.title, domain[1]))
        data += [{"type": "scatter", "xaxis": "x", "yaxis": axis, **trace} for trace in row.traces]
        if row.title == PLAN:
            layout["shapes"] += _bands(shown, axis)
        top_px -= row.height_px
    layout["xaxis"] = {
        "title": {"text": "training time, s"},
        "anchor": axis,
        "range": [0, number(shown.run.time_s)],
        "unifiedhovertitle": {"text": "after %{x:.2f} s"},
    }
    return Figure(data=data, layout=layout, alt=_alt(shown, rows))


def _heading(title: str, y: float) -> Layout:
    return {
        "text": f"<b>{title}</b>",
        "x": 0,
        "y": y,
        "xref": "paper",
        "yref": "paper",
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": 3,
        "showarrow": False,
        "font": {"size": 12},
    }


def _bands(shown: Shown, axis: str) -> list[Layout]:
    """Return a coloured band for as long as each plan was in force."""
    curve = shown.curve
    points = zip(curve.plan, curve.start_s, curve.time_s, strict=True)
    bands = []
    for plan, same in itertools.groupby(points, key=lambda point: point[0]):
        times = list(same)
        bands.append(
            {
                "type": "rect",
                "layer": "between",
                "yref": axis,
                "x0": times[0][1],
                "x1": times[-1][2],
                "y0": 0,
                "y1": 1,
                "fillcolor": exchange_colour(exchange_of(plan)),
                "line": {"color": "var(--panel)", "width": 1},
            }
        )
    return bands


def _lines(shown: Shown, top: float) -> list[Layout]:
    switches = [each for each in shown.run.decisions if is_switch(each)]
    if len(switches) > _MOST_LINES:
        return []
    line = {"color": "var(--muted)", "width": 1, "dash": "dot"}
    return [
        {
            "type": "line",
            "layer": "below",
            "yref": "paper",
            "y0": 0,
            "y1": top,
            "x0": number(each["time_s"]),
            "x1": number(each["time_s"]),
            "line": line,
        }
        for each in switches
    ]


def _alt(shown: Shown, rows: list[Row]) -> str:
    slowest = max(known(shown.curve.slowest_s), default=0.0)
    names = ", ".join(row.title.split(":")[0].split(",")[0].lower() for row in rows)
    return f"{shown.label} over {shown.run.time_s:.3g} seconds of training: {names}; slowest step {slowest:.3g} s"
