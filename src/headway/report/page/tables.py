"""What a page says without a plot: cards, the table of runs, and decisions in plain words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from headway.report.events import Event
from headway.report.page.shown import Shown
from headway.report.page.summary import Summary
from headway.report.page.words import format_share, format_time, format_times
from headway.units import format_bytes

_NOT_KNOWN = "–"
_STATUS = {"running": "running, or killed"}


def cards(rows: Sequence[Summary], runs: Sequence[Shown]) -> str:
    """Return a card for each of several runs, or for each number of one."""
    if len(rows) == 1:
        return "".join(
            _card(title, value, "", runs[0].colour) for title, value in _cells(rows[0]) if value != _NOT_KNOWN
        )
    return "".join(
        _card(row.name, _headline(row), _below(row, rows), shown.colour) for row, shown in zip(rows, runs, strict=True)
    )


def table_of_runs(rows: Sequence[Summary], runs: Sequence[Shown]) -> str:
    """Return all numbers of several runs; columns that nobody has a value for are left out."""
    lines = [_cells(row) for row in rows]
    columns = [place for place in range(len(lines[0])) if any(line[place][1] != _NOT_KNOWN for line in lines)]
    head = "".join(f'<th scope="col">{escape(lines[0][place][0])}</th>' for place in columns)
    body = ""
    for row, shown, line in zip(rows, runs, lines, strict=True):
        cells = "".join(f'<td data-label="{escape(line[place][0])}">{escape(line[place][1])}</td>' for place in columns)
        body += f'<tr><th scope="row">{_key(shown.colour)}{escape(row.name)}</th>{cells}</tr>'
    table = f'<table class="stacks"><thead><tr><th scope="col">Run</th>{head}</tr></thead><tbody>{body}</tbody></table>'
    return scrolling(table, "All runs")


def table_of_decisions(shown: Shown) -> str:
    """Return what a run decided or noticed, a row each, or nothing."""
    events = sorted([*shown.run.decisions, *shown.run.notices], key=lambda event: (event["time_s"], event["step"]))
    if not events:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Step", "Time", "What happened"))
    body = "".join(map(_event, events))
    return f'<table class="events"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def scrolling(table: str, label: str, attributes: str = "") -> str:
    """Return a table that scrolls by itself where it has no room, also by keyboard."""
    return f'<div class="scrolls" tabindex="0" role="region" aria-label="{escape(label)}"{attributes}>{table}</div>'


def _event(event: Event) -> str:
    words = str(event.get("words") or event.get("text") or "").removeprefix(f"step {event['step']}: ")
    is_switch = event["event"] == "decision" and event.get("plan") != event.get("before")
    kind = "switch" if is_switch else "stay"
    return (
        f'<tr class="{kind}"><td>{int(event["step"]):,}</td><td>{escape(format_time(event["time_s"]))}</td>'
        f"<td>{escape(words)}</td></tr>"
    )


def _headline(row: Summary) -> str:
    if row.is_baseline:
        return "baseline"
    return _NOT_KNOWN if row.speedup is None else f"{format_times(row.speedup)}"


def _below(row: Summary, rows: Sequence[Summary]) -> str:
    base = next((each.name for each in rows if each.is_baseline), None)
    said = [] if row.is_baseline or row.speedup is None else [f"the speed of {base}, step by step"]
    said.append(f"{row.num_steps:,} steps in {format_time(row.time_s)}")
    said += [] if not row.wire_bytes else [f"{format_bytes(row.wire_bytes)} sent by a rank"]
    said += [] if row.accuracy is None else [f"{format_share(row.accuracy)} accurate"]
    said += [] if row.status == "finished" else [_STATUS.get(row.status, row.status)]
    return "".join(f"<li>{escape(each)}</li>" for each in said)


def _card(title: str, value: str, below: str, colour: str) -> str:
    more = f"<ul>{below}</ul>" if below else ""
    return (
        f'<li class="card" style="--key:{colour}"><h3>{escape(title)}</h3><p class="big">{escape(value)}</p>{more}</li>'
    )


def _key(colour: str) -> str:
    return f'<span class="key" style="--key:{colour}" aria-hidden="true"></span>'


def _cells(row: Summary) -> list[tuple[str, str]]:
    """Return titles and values, in the order of a reader's questions."""
    target = (
        "Time to the same accuracy" if row.target_accuracy is None else f"Time to {format_share(row.target_accuracy)}"
    )
    return [
        ("Speed-up", _NOT_KNOWN if row.speedup is None else format_times(row.speedup)),
        ("Training time", format_time(row.time_s)),
        (target, _told(row.time_to_target_s, format_time)),
        ("Steps", f"{row.num_steps:,}"),
        ("Median step", _told(row.median_step_s, format_time)),
        ("Sent by a rank", format_bytes(row.wire_bytes)),
        ("Saved", _told(row.saved, format_share)),
        ("Accuracy", _told(row.accuracy, format_share)),
        ("Last loss", _told(row.loss, "{:.3g}".format)),
        ("Plan switches", f"{row.num_switches:,}" if row.num_decisions else _NOT_KNOWN),
        ("Ended", _STATUS.get(row.status, row.status)),
    ]


def _told(value: float | None, write: Callable[[float], str]) -> str:
    return _NOT_KNOWN if value is None else write(value)
