"""``headway report``: a run directory, or several, as one page."""

from __future__ import annotations

import importlib.util
import json
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

PAGE = "report.html"

EXAMPLES = """
Examples:

  headway report runs/adaptive

  headway report runs/adaptive runs/ddp --output comparison.html --open

  headway report runs --json
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "report",
        help="Write one page of HTML, which needs no network, about a run directory or several: how fast they were, "
        "what they sent and learned, and what was decided and why. A folder of run directories stands for all of "
        "them; plain DDP, or else the slowest, is what others are compared with.\n" + EXAMPLES,
    )(report)


def report(
    run_dirs: Annotated[list[Path], typer.Argument(metavar="RUN_DIR", help="Run directories, or a folder of them.")],
    output: Annotated[
        Path | None,
        typer.Option(help=f"Where to; by default {PAGE} in the folder named, or here if several are."),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Show the page in a browser.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a summary of each run as JSON; no page, unless --output is given.")
    ] = False,
) -> None:
    """Report; see ``register`` for the help text."""
    try:
        _report(run_dirs, output, open_page=open_page, as_json=as_json)
    except OSError as error:
        typer.echo(f"headway report: {error.filename}: {error.strerror}", err=True)
        raise typer.Exit(2) from None
    except ValueError as error:
        typer.echo(f"headway report: {error}", err=True)
        raise typer.Exit(2) from None


def _report(run_dirs: list[Path], output: Path | None, *, open_page: bool, as_json: bool) -> None:
    wants_page = output is not None or open_page or not as_json
    if wants_page and importlib.util.find_spec("plotly") is None:
        raise ValueError("a page needs plotly: pip install 'headway[plot]', or use --json")
    from headway.report import find_runs, read_run, summarise, write_page

    runs = [read_run(folder) for folder in find_runs(run_dirs)]
    if wants_page:
        path = output or _default_output(run_dirs)
        write_page(runs, path)
        typer.echo(f"wrote {path}", err=as_json)
        if open_page:
            webbrowser.open(path.resolve().as_uri())
    if as_json:
        typer.echo(json.dumps([row.as_dict() for row in summarise(runs)], indent=2, allow_nan=False))


def _default_output(run_dirs: list[Path]) -> Path:
    return run_dirs[0] / PAGE if len(run_dirs) == 1 else Path(PAGE)
