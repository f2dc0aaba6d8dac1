"""Traffic: the bytes of a step over time, and the totals by exchange."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from headway.report.exchange_styles import colour_of, in_order, label_of
from headway.report.page.figures import (
    Figure,
    Trace,
    axis_of,
    bytes_unit,
    hover_text,
    known,
    numbers,
    plot_text,
    stacked_bars,
)
from headway.report.page.styled_runs import StyledRun
from headway.report.page.thinning import exchange_of_step, known_of
from headway.units import format_bytes


def draw_traffic(runs: Sequence[StyledRun]) -> Figure | None:
    """Return the bytes of a step over time, a line for each run."""
    sent = [run for run in runs if any(known(run.curve.wire_bytes))]
    if not sent:
        return None
    values = [value for run in sent for value in known(run.curve.wire_bytes)]
    unit, factor = bytes_unit(values)
    axis = axis_of(factor * value for value in values)
    layout = {
        "height": 320,
        "xaxis": {"title": {"text": "training time, s"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": f"sent by one rank in a step, {unit}"}, **axis},
        "hovermode": "closest",
    }
    most = (f"{run.label} at most {format_bytes(max(known(run.curve.wire_bytes)))}" for run in sent)
    alt = "bytes a step over training time: " + ", ".join(most)
    return Figure(data=[_line(run, unit, factor) for run in sent], layout=layout, alt=alt)


def _line(run: StyledRun, unit: str, factor: float) -> Trace:
    curve = run.curve
    return {
        "type": "scatter",
        "mode": "lines",
        "connectgaps": True,
        "name": run.plot_name,
        "x": curve.time_s,
        "y": numbers(curve.wire_bytes, factor),
        "line": {"color": run.colour, "dash": run.dash, "width": 2.5, "shape": "vh"},
        "text": [hover_text(plan) for plan in curve.plan],
        "customdata": ["?" if each is None else format_bytes(each) for each in curve.exchange_bytes],
        "hovertemplate": f"%{{y:.3~g}} {unit} a step<br>%{{customdata}} an exchange<br>%{{text}}",
    }


def draw_totals(runs: Sequence[StyledRun]) -> Figure | None:
    """Return all bytes of each run, by the exchange that sent them."""
    totals = [bytes_by_exchange(run) for run in runs]
    exchanges = in_order(name for sums in totals for name in sums)
    if not exchanges:
        return None
    unit, factor = bytes_unit(sum(sums.values()) for sums in totals)
    parts = [
        {
            "name": plot_text(label_of(exchange)),
            "x": numbers((sums.get(exchange, 0.0) for sums in totals), factor),
            "marker": {"color": colour_of(exchange)},
        }
        for exchange in exchanges
    ]
    sent = (f"{run.label} {format_bytes(sum(sums.values()))}" for run, sums in zip(runs, totals, strict=True))
    rows, alt = [run.plot_name for run in runs], "total bytes sent: " + ", ".join(sent)
    return stacked_bars(rows, parts, quantity="total sent by one rank", unit=unit, alt=alt)


def bytes_by_exchange(run: StyledRun) -> dict[str, float]:
    """Return what a rank sent in each exchange that sent something."""
    sums: dict[str, float] = defaultdict(float)
    for step in run.record.steps:
        sums[exchange_of_step(step)] += sum(known_of([step], "wire_bytes"))
    return {exchange: sent for exchange, sent in sums.items() if sent}
