"""The Pareto front at each decision: what could be had then, what was had before, and what was chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.exchange import Plan
from headway.report.events import Event
from headway.report.page.figures import Layout, Trace, axis_of, seconds_unit
from headway.report.page.shown import Shown, exchange_colour, exchange_of, exchange_symbol
from headway.report.page.words import format_time, hover_text, known, number, numbers, plot_text
from headway.tuner import EXCHANGE_NAMES, describe

_HOVER = "%{text}<br>step %{x:.3~g} UNIT, gain %{y:.3~f}<br>compress %{customdata[0]}<br>send %{customdata[1]}"


@dataclass(frozen=True, kw_only=True)
class Fronts:
    """The fronts of a run, a frame for each decision, on the same axes."""

    frames: Sequence[dict[str, Any]]
    layout: Layout

    def as_dict(self) -> dict[str, Any]:
        """Return it for the page."""
        return {"frames": list(self.frames), "layout": self.layout}


def draw_fronts(shown: Shown) -> Fronts | None:
    """Return the fronts of a run, or None if it has none."""
    decisions = [decision for decision in shown.run.decisions if decision.get("front")]
    if not decisions:
        return None
    times = _times(decisions)
    unit, factor = seconds_unit(times)
    exchanges = _exchanges(decisions)
    frames = [
        {
            "step": decision["step"],
            "time": format_time(decision["time_s"]),
            "words": _without_step(decision),
            "xaxis": _time_axis(_times([decision]), unit, factor),
            "data": _frame(decision, exchanges, unit, factor),
        }
        for decision in decisions
    ]
    return Fronts(frames=frames, layout=_layout(frames, times, unit, factor))


def describe_plan(fields: Event) -> str:
    """Return the plan of an event in words, also one that this version would not make."""
    try:
        return describe(Plan(**{name: fields[name] for name in Plan.__dataclass_fields__ if name in fields}))
    except (TypeError, ValueError):
        return str(fields.get("exchange", "a plan"))


def _step_s(decision: Event, plan: Event) -> float | None:
    parts = (decision.get("own_s"), plan.get("compress_s"), plan.get("sync_s"))
    return number(sum(part or 0.0 for part in parts))


def _times(decisions: Sequence[Event]) -> list[float]:
    """Return all times of a step that fronts show."""
    fronts = [_step_s(decision, plan) for decision in decisions for plan in decision["front"]]
    return known([*fronts, *(number(decision.get("step_s_before")) for decision in decisions)])


def _exchanges(decisions: Sequence[Event]) -> list[str]:
    """Return all exchanges on any of the fronts: each has its place in the legend in every frame."""
    found = {exchange_of(describe_plan(plan)) for decision in decisions for plan in decision["front"]}
    return [name for name in EXCHANGE_NAMES.values() if name in found] + sorted(found - set(EXCHANGE_NAMES.values()))


def _without_step(decision: Event) -> str:
    words = str(decision.get("words", ""))
    return words.removeprefix(f"step {decision['step']}: ")


def _frame(decision: Event, exchanges: Sequence[str], unit: str, factor: float) -> list[Trace]:
    """Return the traces of a decision: as many and as ordered in all frames, so that they can move."""
    words = [describe_plan(plan) for plan in decision["front"]]
    rows = list(zip(decision["front"], words, strict=True))
    hover = _HOVER.replace("UNIT", unit) + "<extra></extra>"
    traces = [_edge(decision, factor)]
    for exchange in exchanges:
        plans = [(plan, text) for plan, text in rows if exchange_of(text) == exchange]
        traces.append(
            {
                "x": numbers((_step_s(decision, plan) for plan, _ in plans), factor),
                "y": numbers(plan.get("gain") for plan, _ in plans),
                "text": [hover_text(text) for _, text in plans],
                "customdata": [
                    [format_time(plan.get(part) or 0.0) for part in ("compress_s", "sync_s")] for plan, _ in plans
                ],
                "mode": "markers",
                "name": plot_text(exchange),
                "marker": {"size": 9, "color": exchange_colour(exchange), "symbol": exchange_symbol(exchange)},
                "hovertemplate": hover,
            }
        )
    before = _spot(decision, "before", "plan before", "step_s_before", "gain_before", factor)
    chosen = _spot(decision, "plan", "chosen plan", "step_s", "gain", factor)
    before["marker"] = {"size": 19, "symbol": "circle-open", "color": "var(--muted)", "line": {"width": 3}}
    chosen["marker"] = {"size": 22, "symbol": "circle-open", "color": "var(--accent)", "line": {"width": 4}}
    for spot in (before, chosen):
        spot["hovertemplate"] = (
            f"<b>{spot['name']}</b><br>%{{text}}<br>step %{{x:.3~g}} {unit}, gain %{{y:.3~f}}<extra></extra>"
        )
    return [{"type": "scatter", **trace} for trace in (*traces, before, chosen)]


def _edge(decision: Event, factor: float) -> Trace:
    """Return the line below which nothing need be: more gain only for more time."""
    points = sorted(
        (step_s, gain)
        for plan in decision["front"]
        if (step_s := _step_s(decision, plan)) is not None and (gain := number(plan.get("gain"))) is not None
    )
    edge: list[tuple[float, float]] = []
    for step_s, gain in points:
        if not edge or gain > edge[-1][1]:
            edge.append((step_s, gain))
    return {
        "x": numbers((step_s for step_s, _ in edge), factor),
        "y": [gain for _, gain in edge],
        "mode": "lines",
        "line": {"color": "var(--muted)", "width": 1.5, "shape": "hv", "dash": "dot"},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _spot(decision: Event, field: str, name: str, x: str, y: str, factor: float) -> Trace:
    plan = decision.get(field) or {}
    return {
        "x": numbers([decision.get(x)], factor),
        "y": numbers([decision.get(y)]),
        "text": [hover_text(describe_plan(plan))],
        "mode": "markers",
        "name": name,
    }


def _layout(frames: Sequence[dict[str, Any]], times: Sequence[float], unit: str, factor: float) -> Layout:
    """Return axes that hold all frames, so that the eye sees what moves; a frame has one of time for itself, too."""
    gains = known(gain for frame in frames for trace in frame["data"] for gain in trace["y"])
    return {
        "height": 430,
        "hovermode": "closest",
        "xaxis": _time_axis(times, unit, factor),
        "yaxis": {"title": {"text": "gain"}, "range": [min(0.0, *gains), max(1.06, *gains)]},
    }


def _time_axis(times: Sequence[float], unit: str, factor: float) -> Layout:
    low, high = factor * min(times), factor * max(times)
    axis = axis_of([low, high])
    return {"title": {"text": f"step time as foretold, {unit}"}, **axis, "range": _range(low, high, axis["type"])}


def _range(low: float, high: float, kind: str) -> list[float]:
    if kind == "log":
        low, high = math.log10(low), math.log10(high)
    room = 0.06 * (high - low) or 0.5
    return [low - room, high + room]
