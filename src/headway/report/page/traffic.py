"""What was sent: bytes of a step over time, and in total by exchange."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from headway.report.page.figures import Figure, axis_of, bytes_unit
from headway.report.page.shown import Shown, exchange_colour, exchange_of
from headway.report.page.thinning import known_of
from headway.report.page.words import hover_text, known, number, numbers, plot_text
from headway.units import format_bytes

_BAR_PX = 46


def draw_traffic(runs: Sequence[Shown]) -> Figure | None:
    """Return the bytes of a step over time, a line a run; pointing at it tells those of an exchange, and the plan."""
    sent = [shown for shown in runs if any(known(shown.curve.wire_bytes))]
    if not sent:
        return None
    values = [value for shown in sent for value in known(shown.curve.wire_bytes)]
    unit, factor = bytes_unit(values)
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": shown.plot_name,
            "x": shown.curve.time_s,
            "y": numbers(shown.curve.wire_bytes, factor),
            "line": {"color": shown.colour, "dash": shown.dash, "width": 2.5, "shape": "vh"},
            "text": [hover_text(plan) for plan in shown.curve.plan],
            "customdata": ["?" if each is None else format_bytes(each) for each in shown.curve.exchange_bytes],
            "hovertemplate": f"%{{y:.3~g}} {unit} a step<br>%{{customdata}} an exchange<br>%{{text}}",
        }
        for shown in sent
    ]
    layout = {
        "height": 320,
        "xaxis": {"title": {"text": "training time, s"}, "rangemode": "tozero"},
        "yaxis": {
            "title": {"text": f"sent by a rank in a step, {unit}"},
            **axis_of(factor * value for value in values),
        },
        "hovermode": "closest",
    }
    alt = "bytes a step over training time: " + ", ".join(_most(shown) for shown in sent)
    return Figure(data=data, layout=layout, alt=alt)


def draw_totals(runs: Sequence[Shown]) -> Figure | None:
    """Return all bytes of each run, by the exchange that sent them."""
    totals = {shown.label: bytes_by_exchange(shown) for shown in runs}
    exchanges = dict.fromkeys(name for sums in totals.values() for name in sums)
    if not exchanges:
        return None
    unit, factor = bytes_unit(sum(sums.values()) for sums in totals.values())
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": plot_text(exchange),
            "y": [shown.plot_name for shown in runs],
            "x": [number(factor * totals[shown.label].get(exchange, 0.0)) for shown in runs],
            "marker": {"color": exchange_colour(exchange)},
            "hovertemplate": f"%{{y}}: %{{x:.3~g}} {unit}<extra>%{{fullData.name}}</extra>",
        }
        for exchange in exchanges
    ]
    layout = {
        "height": 80 + _BAR_PX * len(runs),
        "barmode": "stack",
        "xaxis": {"title": {"text": f"sent by a rank in all, {unit}"}},
        "yaxis": {"autorange": "reversed", "type": "category", "showgrid": False},
        "hovermode": "closest",
    }
    told = (f"{label} {format_bytes(sum(sums.values()))}" for label, sums in totals.items())
    return Figure(data=data, layout=layout, alt="bytes sent in all: " + ", ".join(told))


def bytes_by_exchange(shown: Shown) -> dict[str, float]:
    """Return what a rank sent in each exchange that sent something, in the order in which they came."""
    sums: dict[str, float] = defaultdict(float)
    for step in shown.run.steps:
        sums[exchange_of(str(step.get("plan") or ""))] += sum(known_of([step], "wire_bytes"))
    return {exchange: sent for exchange, sent in sums.items() if sent}


def _most(shown: Shown) -> str:
    return f"{shown.label} at most {format_bytes(max(known(shown.curve.wire_bytes)))}"
