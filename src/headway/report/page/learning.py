"""Loss and accuracy against time, bytes or steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headway.report.events import Event
from headway.report.page.figures import Choice, Column, Figure, Layout, Trace, bytes_unit, known, number, numbers
from headway.report.page.styled_runs import StyledRun

AGAINST = {"time": "training time", "bytes": "bytes sent", "steps": "steps"}
"""The choices for the horizontal axis, and their names."""
_NUM_WINDOWS = 24
"""The loss is smoothed over this part of a run: one of 24."""

TracesOf = Callable[[StyledRun, str, float], list[Trace]]
"""Returns the traces of a run against a choice of `AGAINST`, multiplied by a factor."""


def draw_loss(runs: Sequence[StyledRun]) -> Choice:
    """Return the training loss, raw and smoothed, and the loss in evaluations."""
    return _for_each_axis(runs, _loss_traces, "loss", {"title": {"text": "loss"}})


def draw_accuracy(runs: Sequence[StyledRun]) -> Choice:
    """Return the accuracy in evaluations."""
    return _for_each_axis(runs, _accuracy_traces, "accuracy", {"title": {"text": "accuracy"}, "tickformat": ".0%"})


def smooth(values: Column, reach: int) -> Column:
    """Return means over windows that reach ``reach`` values back and forward.

    >>> smooth([1.0, 2.0, None, 6.0], 1)
    [1.5, 1.5, 4.0, 6.0]
    """
    near = (known(values[max(0, place - reach) : place + reach + 1]) for place in range(len(values)))
    return [number(sum(few) / len(few)) if few else None for few in near]


def _for_each_axis(runs: Sequence[StyledRun], traces_of: TracesOf, quantity: str, y_axis: Layout) -> Choice:
    unit, bytes_factor = bytes_unit(sent for run in runs for sent in run.curve.sent_bytes[-1:])
    titles = {"time": "training time, s", "bytes": f"bytes sent by one rank, {unit}", "steps": "steps"}
    options = {}
    for against, title in titles.items():
        factor = bytes_factor if against == "bytes" else 1.0
        data = [trace for run in runs for trace in traces_of(run, against, factor)]
        layout = {"xaxis": {"title": {"text": title}, "rangemode": "tozero"}, "yaxis": y_axis, "height": 340}
        if data:
            names = ", ".join(dict.fromkeys(trace["name"] for trace in data))
            alt = f"{quantity} of {names} against {AGAINST[against]}"
            options[against] = Figure(data=data, layout=layout, alt=alt)
    return Choice(by="against", options=options)


def _places(run: StyledRun, against: str, factor: float) -> Column:
    """Return the horizontal places of a run's points."""
    columns: dict[str, Sequence[float]] = {
        "time": run.curve.time_s,
        "bytes": run.curve.sent_bytes,
        "steps": run.curve.step,
    }
    return numbers(columns[against], factor)


def _place(run: StyledRun, event: Event, against: str, factor: float) -> float | None:
    """Return the horizontal place of an evaluation."""
    if against != "bytes":
        return number(event.get({"time": "time_s", "steps": "step"}[against]))
    points = zip(run.curve.step, run.curve.sent_bytes, strict=True)
    sent = [sent for step, sent in points if step <= event.get("step", 0)]
    return number(factor * sent[-1]) if sent else 0.0


def _loss_traces(run: StyledRun, against: str, factor: float) -> list[Trace]:
    if not run.curve.has("loss"):
        return []
    x, loss = _places(run, against, factor), run.curve.loss
    faint = {"opacity": 0.28, "showlegend": False, "hoverinfo": "skip", "hovertemplate": None}
    raw = {**_line(run, x, loss, 1.0), **faint}
    smoothed = _line(run, x, smooth(loss, len(loss) // (2 * _NUM_WINDOWS)), 2.5)
    markers = {"mode": "markers", "showlegend": False, "hovertemplate": "evaluation %{y:.4~f}"}
    return [raw, smoothed, *({**trace, **markers} for trace in _evaluations(run, "loss", "diamond", against, factor))]


def _accuracy_traces(run: StyledRun, against: str, factor: float) -> list[Trace]:
    markers = {"mode": "lines+markers", "hovertemplate": "%{y:.1%}"}
    return [{**trace, **markers} for trace in _evaluations(run, "accuracy", "circle", against, factor)]


def _evaluations(run: StyledRun, field: str, symbol: str, against: str, factor: float) -> list[Trace]:
    """Return the values of a field in evaluations, or nothing if there are none."""
    events = [event for event in run.record.evaluations if number(event.get(field)) is not None]
    x, y = [_place(run, event, against, factor) for event in events], numbers(event[field] for event in events)
    return [{**_line(run, x, y, 2.5), "marker": {"size": 8, "color": run.colour, "symbol": symbol}}] if events else []


def _line(run: StyledRun, x: Column, y: Column, width: float) -> Trace:
    line = {"color": run.colour, "dash": run.dash, "width": width}
    names = {"name": run.plot_name, "legendgroup": run.plot_name}
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, **names, "line": line, "hovertemplate": "%{y:.4~f}"}
