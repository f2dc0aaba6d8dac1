"""The Pareto front at each decision: the plans to choose from, the plan before, and the chosen plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from headway.report.events import Event
from headway.report.exchange_styles import colour_of, in_order, label_of, symbol_of
from headway.report.page.figures import (
    Layout,
    Trace,
    axis_of,
    format_time,
    hover_text,
    known,
    number,
    numbers,
    plot_text,
    seconds_unit,
)
from headway.report.page.styled_runs import StyledRun
from headway.report.run import is_switch

Frame = dict[str, Any]


def draw_fronts(run: StyledRun) -> dict[str, Any] | None:
    """Return the fronts of a run, a frame for each decision, with a layout for all; None if it has none."""
    decisions = [decision for decision in run.record.decisions if decision.get("front")]
    if not decisions:
        return None
    times = _times(decisions)
    unit, factor = seconds_unit(times)
    exchanges = in_order(_exchange(plan) for decision in decisions for plan in decision["front"])
    frames = [
        {
            "step": decision["step"],
            "time": format_time(decision["time_s"]),
            "words": words_of(decision),
            "isSwitch": is_switch(decision),
            "xaxis": _time_axis(_times([decision]), unit, factor),
            "data": _traces(decision, exchanges, unit, factor),
        }
        for decision in decisions
    ]
    return {"frames": frames, "layout": _layout(frames, times, unit, factor)}


def words_of(event: Event) -> str:
    """Return the words of a decision or notice, without the step that they may begin with."""
    words = str(event.get("words") or event.get("text") or "")
    return words.removeprefix(f"step {event['step']}: ")


def _exchange(plan: Event) -> str:
    return str(plan.get("exchange") or "a plan")


def _label(plan: Event) -> str:
    """Return the label of a plan; decisions of older versions do not have one."""
    return str(plan.get("label") or _exchange(plan))


def _step_s(decision: Event, plan: Event) -> float | None:
    parts = (decision.get("own_s"), plan.get("compress_s"), plan.get("sync_s"))
    return number(sum(part or 0.0 for part in parts))


def _times(decisions: Sequence[Event]) -> list[float]:
    """Return all step times that the fronts show."""
    fronts = [_step_s(decision, plan) for decision in decisions for plan in decision["front"]]
    return known([*fronts, *(number(decision.get("step_s_before")) for decision in decisions)])


def _traces(decision: Event, exchanges: Sequence[str], unit: str, factor: float) -> list[Trace]:
    """Return the traces of a decision: the same number in the same order in all frames, so that they can move."""
    before = _ring(decision, "before", "plan before", ("step_s_before", "gain_before"), unit, factor)
    before["marker"] = {"size": 19, "symbol": "circle-open", "color": "var(--muted)", "line": {"width": 3}}
    chosen = _ring(decision, "plan", "chosen plan", ("step_s", "gain"), unit, factor)
    chosen["marker"] = {"size": 22, "symbol": "circle-open", "color": "var(--accent)", "line": {"width": 4}}
    plans = [_plans(decision, exchange, unit, factor) for exchange in exchanges]
    return [{"type": "scatter", **trace} for trace in (_edge(decision, factor), *plans, before, chosen)]


def _plans(decision: Event, exchange: str, unit: str, factor: float) -> Trace:
    """Return the plans of one exchange on the front."""
    plans = [plan for plan in decision["front"] if _exchange(plan) == exchange]
    times = [[format_time(plan.get(part) or 0.0) for part in ("compress_s", "sync_s")] for plan in plans]
    return {
        "x": numbers((_step_s(decision, plan) for plan in plans), factor),
        "y": numbers(plan.get("gain") for plan in plans),
        "text": [hover_text(_label(plan)) for plan in plans],
        "customdata": times,
        "mode": "markers",
        "name": plot_text(label_of(exchange)),
        "marker": {"size": 9, "color": colour_of(exchange), "symbol": symbol_of(exchange)},
        "hovertemplate": f"%{{text}}<br>step %{{x:.3~g}} {unit}, gain %{{y:.3~f}}<br>compress %{{customdata[0]}}<br>"
        "send %{customdata[1]}<extra></extra>",
    }


def _edge(decision: Event, factor: float) -> Trace:
    """Return the line along the plans of which none has both less time and more gain."""
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


def _ring(decision: Event, field: str, name: str, at: tuple[str, str], unit: str, factor: float) -> Trace:
    """Return a ring around the plan in a field of the decision."""
    return {
        "x": numbers([decision.get(at[0])], factor),
        "y": numbers([decision.get(at[1])]),
        "text": [hover_text(_label(decision.get(field) or {}))],
        "mode": "markers",
        "name": name,
        "hovertemplate": f"<b>{name}</b><br>%{{text}}<br>step %{{x:.3~g}} {unit}, gain %{{y:.3~f}}<extra></extra>",
    }


def _layout(frames: Sequence[Frame], times: Sequence[float], unit: str, factor: float) -> Layout:
    """Return axes that hold all frames; a frame also has a time axis of its own."""
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
    return {"title": {"text": f"predicted step time, {unit}"}, **axis, "range": _range(low, high, axis["type"])}


def _range(low: float, high: float, kind: str) -> list[float]:
    if kind == "log":
        low, high = math.log10(low), math.log10(high)
    room = 0.06 * (high - low) or 0.5
    return [low - room, high + room]
