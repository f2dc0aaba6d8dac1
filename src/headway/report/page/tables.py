"""Cards, the table of runs, and the table of decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from headway.report.events import Event
from headway.report.page.figures import format_share, format_speedup, format_time
from headway.report.page.fronts import words_of
from headway.report.page.styled_runs import StyledRun
from headway.report.page.summary import Summary
from headway.report.run import is_switch
from headway.units import format_bytes

_UNKNOWN = "–"
_STATUS = {"running": "running, or killed"}


def cards(rows: Sequence[Summary], runs: Sequence[StyledRun]) -> str:
    """Return a card for each of several runs, or for each number of a single run."""
    if len(rows) == 1:
        return "".join(_card(title, value, "", runs[0].colour) for title, value in _cells(rows[0]) if value != _UNKNOWN)
    return "".join(
        _card(row.name, _headline(row), _below(row, rows), run.colour) for row, run in zip(rows, runs, strict=True)
    )


def table_of_runs(rows: Sequence[Summary], runs: Sequence[StyledRun]) -> str:
    """Return all numbers of several runs; columns without values are left out."""
    lines = [_cells(row) for row in rows]
    columns = [place for place in range(len(lines[0])) if any(line[place][1] != _UNKNOWN for line in lines)]
    head = "".join(f'<th scope="col">{escape(lines[0][place][0])}</th>' for place in columns)
    body = ""
    for row, run, line in zip(rows, runs, lines, strict=True):
        cells = "".join(f'<td data-label="{escape(line[place][0])}">{escape(line[place][1])}</td>' for place in columns)
        body += f'<tr><th scope="row">{_key(run.colour)}{escape(row.name)}</th>{cells}</tr>'
    table = f'<table class="stacks"><thead><tr><th scope="col">Run</th>{head}</tr></thead><tbody>{body}</tbody></table>'
    return scrolling(table, "All runs")


def table_of_decisions(run: StyledRun) -> str:
    """Return the decisions and notices of a run, a row for each, or nothing."""
    events = sorted([*run.record.decisions, *run.record.notices], key=lambda event: (event["time_s"], event["step"]))
    if not events:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Step", "Time", "What happened"))
    body = "".join(map(_event, events))
    return f'<table class="events"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def scrolling(table: str, label: str, attributes: str = "") -> str:
    """Return a table in a region that scrolls, also by keyboard."""
    return f'<div class="scrolls" tabindex="0" role="region" aria-label="{escape(label)}"{attributes}>{table}</div>'


def _event(event: Event) -> str:
    kind = "switch" if event["event"] == "decision" and is_switch(event) else "stay"
    return (
        f'<tr class="{kind}"><td>{int(event["step"]):,}</td><td>{escape(format_time(event["time_s"]))}</td>'
        f"<td>{escape(words_of(event))}</td></tr>"
    )


def _headline(row: Summary) -> str:
    if row.is_baseline:
        return "baseline"
    return _UNKNOWN if row.speedup is None else format_speedup(row.speedup)


def _below(row: Summary, rows: Sequence[Summary]) -> str:
    base = next((each.name for each in rows if each.is_baseline), None)
    lines = [] if row.is_baseline or row.speedup is None else [f"the speed of {base}, per step"]
    lines.append(f"{row.num_steps:,} steps in {format_time(row.time_s)}")
    lines += [] if not row.wire_bytes else [f"{format_bytes(row.wire_bytes)} sent by one rank"]
    lines += [] if row.accuracy is None else [f"{format_share(row.accuracy)} accurate"]
    lines += [] if row.status == "finished" else [_STATUS.get(row.status, row.status)]
    return "".join(f"<li>{escape(line)}</li>" for line in lines)


def _card(title: str, value: str, below: str, colour: str) -> str:
    more = f"<ul>{below}</ul>" if below else ""
    return (
        f'<li class="card" style="--key:{colour}"><h3>{escape(title)}</h3><p class="big">{escape(value)}</p>{more}</li>'
    )


def _key(colour: str) -> str:
    return f'<span class="key" style="--key:{colour}" aria-hidden="true"></span>'


def _cells(row: Summary) -> list[tuple[str, str]]:
    """Return titles and values, the most important first."""
    target = (
        "Time to the same accuracy" if row.target_accuracy is None else f"Time to {format_share(row.target_accuracy)}"
    )
    return [
        ("Speed-up", _UNKNOWN if row.speedup is None else format_speedup(row.speedup)),
        ("Training time", format_time(row.time_s)),
        (target, _or_unknown(row.time_to_target_s, format_time)),
        ("Steps", f"{row.num_steps:,}"),
        ("Median step", _or_unknown(row.median_step_s, format_time)),
        ("Sent by one rank", format_bytes(row.wire_bytes)),
        ("Saved", _or_unknown(row.saved, format_share)),
        ("Accuracy", _or_unknown(row.accuracy, format_share)),
        ("Last loss", _or_unknown(row.loss, "{:.3g}".format)),
        ("Plan switches", f"{row.num_switches:,}" if row.num_decisions else _UNKNOWN),
        ("Ended", _STATUS.get(row.status, row.status)),
    ]


def _or_unknown(value: float | None, write: Callable[[float], str]) -> str:
    return _UNKNOWN if value is None else write(value)
