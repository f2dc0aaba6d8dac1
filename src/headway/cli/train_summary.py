"""What ``headway train`` prints at the end: the runs side by side, where they are, how to resume."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from headway.report import Run, Summary, summarise, write_page
from headway.units import format_bytes, format_clock, format_duration

PAGE = "report.html"
_COLUMNS = ("method", "time", "a step", "faster", "sent", "saved", "accuracy", "switches")


def show_runs(console: Console, runs: Sequence[Run], folder: Path, *, as_json: bool) -> None:
    """Show runs side by side; write a report if there are several."""
    rows = summarise(runs)
    console.print(_table(rows))
    if as_json:
        typer.echo(json.dumps([row.as_dict() for row in rows], allow_nan=False))
    for run, row in zip(runs, rows, strict=True):
        if run.steps and run.steps[-1]["loss"] is None:
            say(console, f"{row.name} has diverged: its loss is not finite; try a lower --lr")
    say(console, f"run directory: {folder}")
    if len(runs) == 1:
        say(console, f"look at it with: headway report {quote(str(folder))}")
        return
    try:
        write_page(runs, folder / PAGE)
    except (ValueError, ImportError) as error:
        say(console, f"no report: {error}")
        return
    say(console, f"report: {folder / PAGE}")


def say_how_to_resume(console: Console, folder: Path, *, is_joined: bool = False) -> None:
    """Say that training was stopped, and which command resumes it."""
    has_checkpoint = any(folder.glob("**/checkpoints/step-*/rank-0.pt"))
    words = "" if has_checkpoint else " before the first checkpoint"
    command = "torchrun ... -m headway train" if is_joined else "headway train"
    say(console, f"stopped{words}; all workers have ended; continue with: {command} --resume {quote(str(folder))}")


def say(console: Console, text: str) -> None:
    """Print a line as it is, however long."""
    console.print(text, markup=False, soft_wrap=True)


def _table(rows: Sequence[Summary]) -> Table:
    """Return a table of runs, one row for each; unknown figures are left empty."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in _COLUMNS:
        table.add_column(title, justify="left" if title == "method" else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.name,
            format_clock(row.time_s),
            "" if row.mean_step_s is None else format_duration(row.mean_step_s),
            "" if row.speedup is None else f"{row.speedup:.1f}x",
            format_bytes(row.wire_bytes),
            "" if row.saved is None else f"{row.saved:.1%}",
            "" if row.accuracy is None else f"{row.accuracy:.1%}",
            str(row.num_switches),
        )
    return table
