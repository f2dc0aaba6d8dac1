"""What runs learned, against time, bytes or steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headway.report.events import Event
from headway.report.page.figures import Choice, Column, Figure, Layout, Trace, bytes_unit
from headway.report.page.shown import Shown
from headway.report.page.words import known, number, numbers

AGAINST = {"time": "training time", "bytes": "bytes sent", "steps": "steps"}
"""What a reader may choose for the axis, and its name."""
_SMOOTHED_SHARE = 24
"""A smooth loss is the mean over one of so many parts of the run."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What learning is shown against."""

    key: str
    title: str
    factor: float

    def of_curve(self, shown: Shown) -> Column:
        """Return where the points of a run lie."""
        columns: dict[str, Sequence[float]] = {
            "time": shown.curve.time_s,
            "bytes": shown.curve.sent_bytes,
            "steps": shown.curve.step,
        }
        return numbers(columns[self.key], self.factor)

    def of_event(self, shown: Shown, event: Event) -> float | None:
        """Return where an evaluation of a run lies."""
        if self.key == "time":
            return number(event["time_s"])
        if self.key == "steps":
            return number(event.get("step"))
        sent = [
            sent
            for step, sent in zip(shown.curve.step, shown.curve.sent_bytes, strict=True)
            if step <= event.get("step", 0)
        ]
        return number(self.factor * sent[-1]) if sent else 0.0


TracesOf = Callable[[Shown, Axis], list[Trace]]


def draw_loss(runs: Sequence[Shown]) -> Choice:
    """Return the loss in training, smooth and as it came, and in evaluations."""
    return _for_each_axis(runs, _loss_traces, "loss", {"title": {"text": "loss"}})


def draw_accuracy(runs: Sequence[Shown]) -> Choice:
    """Return the accuracy in evaluations."""
    axis = {"title": {"text": "accuracy"}, "tickformat": ".0%"}
    return _for_each_axis(runs, _accuracy_traces, "accuracy", axis)


def smooth(values: Column, reach: int) -> Column:
    """Return means over what lies at most ``reach`` before and after.

    >>> smooth([1.0, 2.0, None, 6.0], 1)
    [1.5, 1.5, 4.0, 6.0]
    """
    near = (known(values[max(0, place - reach) : place + reach + 1]) for place in range(len(values)))
    return [number(sum(few) / len(few)) if few else None for few in near]


def _for_each_axis(runs: Sequence[Shown], traces_of: TracesOf, what: str, y_axis: Layout) -> Choice:
    options = {}
    for axis in _axes(runs):
        data = [trace for shown in runs for trace in traces_of(shown, axis)]
        layout = {"xaxis": {"title": {"text": axis.title}, "rangemode": "tozero"}, "yaxis": y_axis, "height": 340}
        if data:
            names = ", ".join(dict.fromkeys(trace["name"] for trace in data))
            alt = f"{what} of {names} against {AGAINST[axis.key]}"
            options[axis.key] = Figure(data=data, layout=layout, alt=alt)
    return Choice(by="against", options=options)


def _axes(runs: Sequence[Shown]) -> list[Axis]:
    unit, factor = bytes_unit(sent for shown in runs for sent in shown.curve.sent_bytes[-1:])
    return [
        Axis(key="time", title="training time, s", factor=1.0),
        Axis(key="bytes", title=f"bytes sent by a rank, {unit}", factor=factor),
        Axis(key="steps", title="steps", factor=1.0),
    ]


def _loss_traces(shown: Shown, axis: Axis) -> list[Trace]:
    if not shown.curve.has("loss"):
        return []
    x, loss = axis.of_curve(shown), shown.curve.loss
    raw = {
        **_line(shown, x, loss, 1.0),
        "opacity": 0.28,
        "showlegend": False,
        "hoverinfo": "skip",
        "hovertemplate": None,
    }
    smoothed = _line(shown, x, smooth(loss, len(loss) // (2 * _SMOOTHED_SHARE)), 2.5)
    return [raw, smoothed, *_evaluated(shown, axis, "loss", "evaluation %{y:.4~f}")]


def _accuracy_traces(shown: Shown, axis: Axis) -> list[Trace]:
    return _evaluated(shown, axis, "accuracy", "%{y:.1%}", with_line=True)


def _evaluated(shown: Shown, axis: Axis, field: str, hover: str, *, with_line: bool = False) -> list[Trace]:
    events = [event for event in shown.run.evaluations if number(event.get(field)) is not None]
    if not events:
        return []
    x, y = [axis.of_event(shown, event) for event in events], numbers(event[field] for event in events)
    marker = {"size": 8, "color": shown.colour, "symbol": "diamond" if not with_line else "circle"}
    return [
        {
            **_line(shown, x, y, 2.5),
            "mode": "lines+markers" if with_line else "markers",
            "marker": marker,
            "showlegend": with_line,
            "hovertemplate": hover,
        }
    ]


def _line(shown: Shown, x: Column, y: Column, width: float) -> Trace:
    return {
        "x": x,
        "y": y,
        "type": "scatter",
        "mode": "lines",
        "name": shown.plot_name,
        "legendgroup": shown.plot_name,
        "line": {"color": shown.colour, "dash": shown.dash, "width": width},
        "hovertemplate": "%{y:.4~f}",
    }
