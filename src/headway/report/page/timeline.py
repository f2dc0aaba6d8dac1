"""The time line of a run: the link, the plan, and what came of it, one above the other."""

from __future__ import annotations

from headway.report.page.figures import Column, Figure, Layout, Trace, axis_of, scale_of, seconds_unit
from headway.report.page.rows import PLAN, Row, is_switch, stack
from headway.report.page.shown import Shown, exchange_colour, exchange_of
from headway.report.page.words import hover_text, number, numbers, plot_text

_PLAN_PX = 30


def draw_timeline(shown: Shown) -> Figure | None:
    """Return the time line of a run; what nothing is known of is left out."""
    if not shown.run.steps:
        return None
    rows = [row for row in (_latency(shown), _bandwidth(shown), _plan(shown), _ratio(shown), _gain(shown)) if row]
    rows.append(_step_time(shown))
    return stack(shown, rows)


def _latency(shown: Shown) -> Row | None:
    return _link(shown, "latency_s", "One-way latency, ms", 1e3)


def _bandwidth(shown: Shown) -> Row | None:
    return _link(shown, "bandwidth_bps", "Bandwidth, Mbps", 1e-6)


def _link(shown: Shown, name: str, title: str, factor: float) -> Row | None:
    curve = shown.curve
    phases = [phase for phase in shown.run.phases if number(phase.get(name)) is not None]
    traces: list[Trace] = []
    if phases:
        traces.append(
            {
                "x": [*numbers(phase["time_s"] for phase in phases), shown.run.time_s],
                "y": numbers((phase[name] for phase in [*phases, phases[-1]]), factor),
                "mode": "lines",
                "name": "link as emulated",
                "hovertemplate": f"{title}, emulated: %{{y:.3~g}}<extra></extra>",
                "showlegend": name == "latency_s",
                "line": {"shape": "hv", "color": "var(--muted)", "width": 2, "dash": "dot"},
            }
        )
    if curve.has(name):
        line = {"color": shown.colour, "width": 2}
        estimate = _line(curve.time_s, numbers(getattr(curve, name), factor), "link as estimated", line)
        hover = f"{title}, estimated: %{{y:.3~g}}<extra></extra>"
        traces.append({**estimate, "showlegend": name == "latency_s", "hovertemplate": hover})
    values = [value for trace in traces for value in trace["y"]]
    return Row(title=title, traces=traces, axis=axis_of(values)) if traces else None


def _plan(shown: Shown) -> Row | None:
    curve = shown.curve
    if not any(curve.plan):
        return None
    names = list(dict.fromkeys(exchange_of(plan) for plan in curve.plan))
    legend = [
        {
            "x": [None],
            "y": [None],
            "mode": "markers",
            "name": plot_text(name),
            "hoverinfo": "skip",
            "marker": {"symbol": "square", "size": 11, "color": exchange_colour(name)},
        }
        for name in names
    ]
    told = {
        "x": curve.time_s,
        "y": [0.5] * len(curve.time_s),
        "mode": "markers",
        "marker": {
            "opacity": 0,
            "size": 16,
            "color": "var(--panel)",
        },  # larger than decisions, so that those come first
        "showlegend": False,
        "name": "plan",
        "text": [hover_text(plan) for plan in curve.plan],
        "hovertemplate": "Plan: %{text}<extra></extra>",
    }
    axis = {"range": [0, 1], "showticklabels": False, "showgrid": False, "zeroline": False}
    return Row(title=PLAN, traces=[*legend, told, *_decisions(shown)], height_px=_PLAN_PX, axis=axis)


def _decisions(shown: Shown) -> list[Trace]:
    """Return markers of what was decided, with the words."""
    traces = []
    for switches, name, symbol in ((True, "switch of plan", "diamond"), (False, "stayed with the plan", "circle-open")):
        made = [each for each in shown.run.decisions if is_switch(each) == switches]
        if made:
            traces.append(
                {
                    "x": numbers(each["time_s"] for each in made),
                    "y": [0.5] * len(made),
                    "mode": "markers",
                    "name": name,
                    "marker": {
                        "symbol": symbol,
                        "size": 10,
                        "color": "var(--text)",
                        "line": {"color": "var(--panel)" if switches else "var(--text)", "width": 1.5},
                    },
                    "text": [hover_text(str(each.get("words", ""))) for each in made],
                    "hovertemplate": "<b>Decision</b><br>%{text}<extra></extra>",
                }
            )
    return traces


def _ratio(shown: Shown) -> Row | None:
    return _quantity(shown, "ratio", "Ratio: share of entries sent, %", 100.0, step_like=True)


def _gain(shown: Shown) -> Row | None:
    row = _quantity(shown, "gain", "Gain: share of the gradient that arrives", 1.0)
    if row is not None and scale_of(shown.curve.gain) == "linear":
        row.axis.update({"type": "linear", "rangemode": "tozero"})
    return row


def _step_time(shown: Shown) -> Row:
    unit, factor = seconds_unit(shown.curve.slowest_s)
    row = _quantity(shown, "step_s", f"Step time, {unit}", factor)
    assert row is not None
    if shown.curve.steps_each > 1:
        line = {"color": "var(--muted)", "width": 1}
        row.traces.insert(
            0, _line(shown.curve.time_s, numbers(shown.curve.slowest_s, factor), "slowest step of a point", line)
        )
    return row


def _quantity(shown: Shown, name: str, title: str, factor: float, *, step_like: bool = False) -> Row | None:
    if not shown.curve.has(name):
        return None
    values = numbers(getattr(shown.curve, name), factor)
    line = {"color": shown.colour, "width": 2, **({"shape": "vh"} if step_like else {})}
    name_shown, _, unit = title.partition(":")[0].partition(", ")
    hover = f"{name_shown}: %{{y:.3~g}} {unit or ('%' if name == 'ratio' else '')}<extra></extra>"
    trace = {**_line(shown.curve.time_s, values, name_shown.lower(), line), "showlegend": False, "hovertemplate": hover}
    return Row(title=title, traces=[trace], axis=axis_of(values))


def _line(x: list[float], y: Column, name: str, line: Layout) -> Trace:
    return {"x": x, "y": y, "mode": "lines", "name": name, "line": line, "hovertemplate": "%{y:.3~g}"}
