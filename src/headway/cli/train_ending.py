"""The last words of training: how it went, where everything is, how to go on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

import typer
from rich.console import Console

from headway.cli.summary_table import summary_table
from headway.report import Run, summarise, write_page

PAGE = "report.html"
_LAUNCHER = "torchrun ..."


def conclude(console: Console, runs: Sequence[Run], folder: Path, *, as_json: bool) -> None:
    """Show runs side by side; write a report if there are several."""
    rows = summarise(runs)
    console.print(summary_table(rows))
    if as_json:
        typer.echo(json.dumps([row.as_dict() for row in rows], allow_nan=False))
    for run, row in zip(runs, rows, strict=True):
        if run.steps and run.steps[-1]["loss"] is None:
            _say(console, f"{row.name} has diverged: its loss is not finite; try a lower --lr")
    _say(console, f"run directory: {folder}")
    if len(runs) == 1:
        _say(console, f"look at it with: headway report {quote(str(folder))}")
        return
    try:
        write_page(runs, folder / PAGE)
    except (ValueError, ImportError) as error:
        _say(console, f"no report: {error}")
        return
    _say(console, f"report: {folder / PAGE}")


def say_how_to_go_on(console: Console, folder: Path, *, is_joined: bool = False) -> None:
    """Say that training was stopped, and what can be done now."""
    has_any = any(folder.glob("**/checkpoints/step-*/rank-0.pt"))
    words = "" if has_any else " before there was a checkpoint"
    command = "headway train" if not is_joined else f"{_LAUNCHER} -m headway train"
    _say(console, f"stopped{words}; all workers have ended; go on with: {command} --resume {quote(str(folder))}")


def _say(console: Console, words: str) -> None:
    console.print(words, markup=False, soft_wrap=True)
