"""The time line of a run: link, plan, ratio, gain, local steps and step time in rows on one time axis."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from headway.report.exchange_styles import colour_of, label_of
from headway.report.page.figures import (
    Column,
    Figure,
    Layout,
    Trace,
    axis_of,
    hover_text,
    known,
    number,
    numbers,
    plot_text,
    scale_of,
    seconds_unit,
)
from headway.report.page.styled_runs import StyledRun
from headway.report.run import is_switch

_PLAN = "Plan"
"""The title of the row with a band for each plan."""
_ROW_PX, _PLAN_PX, _GAP_PX, _BELOW_PX = 104, 30, 32, 46
_MOST_LINES = 120
"""With more switches, lines across all rows would hide the curves."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A quantity over time."""

    title: str
    traces: list[Trace]
    height_px: int = _ROW_PX
    axis: Layout


def draw_timeline(run: StyledRun) -> Figure | None:
    """Return the time line of a run, with a row for each quantity that is known."""
    if not run.record.steps:
        return None
    rows = [
        _link(run, "latency_s", "One-way latency, ms", 1e3),
        _link(run, "bandwidth_bps", "Bandwidth, Mbps", 1e-6),
        _plan(run),
        _quantity(run, "ratio", "Ratio: share of entries sent, %", 100.0, shape="vh"),
        _gain(run),
        _quantity(run, "local_steps", "Local steps: from one exchange to the next", 1.0, shape="vh"),
        _quantity(run, "agreement", "Agreement: how much ranks move the same way", 1.0),
        _step_time(run),
    ]
    return _stack(run, [row for row in rows if row is not None])


def _link(run: StyledRun, name: str, title: str, factor: float) -> Row | None:
    curve = run.curve
    phases = [phase for phase in run.record.phases if number(phase.get(name)) is not None]
    traces: list[Trace] = []
    if phases:
        x = [*numbers(phase["time_s"] for phase in phases), run.record.time_s]
        y = numbers((phase[name] for phase in [*phases, phases[-1]]), factor)
        line = {"shape": "hv", "color": "var(--muted)", "width": 2, "dash": "dot"}
        traces.append(_line(x, y, "emulated link", line, f"{title}, emulated: %{{y:.3~g}}"))
    if curve.has(name):
        line = {"color": run.colour, "width": 2}
        hover = f"{title}, estimated: %{{y:.3~g}}"
        traces.append(_line(curve.time_s, numbers(getattr(curve, name), factor), "estimated link", line, hover))
    for trace in traces:
        trace["showlegend"] = name == "latency_s"
    values = [value for trace in traces for value in trace["y"]]
    return Row(title=title, traces=traces, axis=axis_of(values)) if traces else None


def _plan(run: StyledRun) -> Row | None:
    curve = run.curve
    if not any(curve.plan):
        return None
    legend = [
        {
            **{"x": [None], "y": [None], "mode": "markers", "hoverinfo": "skip", "name": plot_text(label_of(name))},
            "marker": {"symbol": "square", "size": 11, "color": colour_of(name)},
        }
        for name in dict.fromkeys(curve.exchange)
    ]
    plans = {
        **{"x": curve.time_s, "y": [0.5] * len(curve.time_s), "mode": "markers", "name": "plan", "showlegend": False},
        "marker": {"opacity": 0, "size": 16, "color": "var(--panel)"},  # larger than decisions, whose labels come first
        "text": [hover_text(plan) for plan in curve.plan],
        "hovertemplate": "Plan: %{text}<extra></extra>",
    }
    axis = {"range": [0, 1], "showticklabels": False, "showgrid": False, "zeroline": False}
    return Row(title=_PLAN, traces=[*legend, plans, *_decisions(run)], height_px=_PLAN_PX, axis=axis)


def _decisions(run: StyledRun) -> list[Trace]:
    """Return markers of decisions, with their words."""
    traces = []
    for switches, name, symbol in ((True, "plan changed", "diamond"), (False, "plan kept", "circle-open")):
        decisions = [each for each in run.record.decisions if is_switch(each) == switches]
        line = {"color": "var(--panel)" if switches else "var(--text)", "width": 1.5}
        traces.append(
            {
                **{"x": numbers(each["time_s"] for each in decisions), "y": [0.5] * len(decisions)},
                **{"mode": "markers", "name": name},
                "marker": {"symbol": symbol, "size": 10, "color": "var(--text)", "line": line},
                "text": [hover_text(str(each.get("words", ""))) for each in decisions],
                "hovertemplate": "<b>Decision</b><br>%{text}<extra></extra>",
            }
        )
    return [trace for trace in traces if trace["x"]]


def _gain(run: StyledRun) -> Row | None:
    row = _quantity(run, "gain", "Gain: share of the gradient that arrives", 1.0)
    if row is not None and scale_of(run.curve.gain) == "linear":
        row.axis.update({"type": "linear", "rangemode": "tozero"})
    return row


def _step_time(run: StyledRun) -> Row:
    curve = run.curve
    unit, factor = seconds_unit(curve.slowest_s)
    row = _quantity(run, "step_s", f"Step time, {unit}", factor)
    assert row is not None
    if curve.steps_each > 1:
        line = {"color": "var(--muted)", "width": 1}
        row.traces.insert(0, _line(curve.time_s, numbers(curve.slowest_s, factor), "slowest step of a point", line))
    return row


def _quantity(run: StyledRun, name: str, title: str, factor: float, *, shape: str = "linear") -> Row | None:
    if not run.curve.has(name):
        return None
    values = numbers(getattr(run.curve, name), factor)
    quantity, _, unit = title.partition(":")[0].partition(", ")
    hover = f"{quantity}: %{{y:.3~g}} {unit or ('%' if name == 'ratio' else '')}"
    trace = _line(run.curve.time_s, values, quantity.lower(), {"color": run.colour, "width": 2, "shape": shape}, hover)
    return Row(title=title, traces=[{**trace, "showlegend": False}], axis=axis_of(values))


def _line(x: Column | list[float], y: Column, name: str, line: Layout, hover: str = "") -> Trace:
    template = f"{hover}<extra></extra>" if hover else "%{y:.3~g}"
    gaps = {"connectgaps": True}  # steps between exchanges have no ratio
    return {"x": x, "y": y, "mode": "lines", "name": name, "line": line, "hovertemplate": template, **gaps}


def _stack(run: StyledRun, rows: list[Row]) -> Figure:
    """Return the rows one above the other, on one time axis."""
    inner_px = sum(row.height_px for row in rows) + _GAP_PX * len(rows)
    layout: Layout = {
        "height": inner_px + _BELOW_PX,
        "margin": {"t": 0, "b": _BELOW_PX},
        "hovermode": "x unified",
        "hoversubplots": "axis",
        "annotations": [],
        "shapes": _lines(run, 1 - _GAP_PX / inner_px),
    }
    data: list[Trace] = []
    top_px = float(inner_px)
    for place, row in enumerate(rows, start=1):
        top_px -= _GAP_PX
        domain = [(top_px - row.height_px) / inner_px, top_px / inner_px]
        suffix = str(place) if place > 1 else ""
        axis = f"y{suffix}"
        layout[f"yaxis{suffix}"] = {**row.axis, "domain": domain, "fixedrange": True}
        layout["annotations"].append(_heading(row.title, domain[1]))
        data += [{"type": "scatter", "xaxis": "x", "yaxis": axis, **trace} for trace in row.traces]
        if row.title == _PLAN:
            layout["shapes"] += _bands(run, axis)
        top_px -= row.height_px
    layout["xaxis"] = {
        "title": {"text": "training time, s"},
        "anchor": axis,
        "range": [0, number(run.record.time_s)],
        "unifiedhovertitle": {"text": "after %{x:.2f} s"},
    }
    return Figure(data=data, layout=layout, alt=_alt(run, rows))


def _heading(title: str, y: float) -> Layout:
    place = {"x": 0, "y": y, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "yshift": 3}
    return {"text": f"<b>{title}</b>", "showarrow": False, "font": {"size": 12}, **place}


def _bands(run: StyledRun, axis: str) -> list[Layout]:
    """Return a coloured band for the time in which each plan was in force."""
    curve = run.curve
    points = zip(curve.exchange, curve.plan, curve.start_s, curve.time_s, strict=True)
    common = {"type": "rect", "layer": "between", "yref": axis, "y0": 0, "y1": 1}
    bands = []
    for (exchange, _), same in itertools.groupby(points, key=lambda point: point[:2]):
        times = list(same)
        style = {"fillcolor": colour_of(exchange), "line": {"color": "var(--panel)", "width": 1}}
        bands.append({**common, "x0": times[0][2], "x1": times[-1][3], **style})
    return bands


def _lines(run: StyledRun, top: float) -> list[Layout]:
    """Return a line across all rows for each switch."""
    times = [number(each["time_s"]) for each in run.record.decisions if is_switch(each)]
    line = {"color": "var(--muted)", "width": 1, "dash": "dot"}
    common = {"type": "line", "layer": "below", "yref": "paper", "y0": 0, "y1": top, "line": line}
    return [{**common, "x0": time_s, "x1": time_s} for time_s in times] if len(times) <= _MOST_LINES else []


def _alt(run: StyledRun, rows: list[Row]) -> str:
    slowest = max(known(run.curve.slowest_s), default=0.0)
    names = ", ".join(row.title.split(":")[0].split(",")[0].lower() for row in rows)
    return f"{run.label} over {run.record.time_s:.3g} seconds of training: {names}; slowest step {slowest:.3g} s"
