"""``headway report``: one page of HTML about run directories."""

from __future__ import annotations

import importlib.util
import json
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.process import errors_in_one_line

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
        help="Write one self-contained page of HTML about one or more run directories: how fast they were, what they "
        "sent and learned, and what was decided and why. A folder of run directories stands for all of them; the "
        "baseline of the comparison is plain DDP, or else the slowest run.\n" + EXAMPLES,
    )(report)


def report(
    run_dirs: Annotated[list[Path], typer.Argument(metavar="RUN_DIR", help="Run directories, or a folder of them.")],
    output: Annotated[
        Path | None,
        typer.Option(help=f"Page to write; by default {PAGE} in the run directory, or here if there are several."),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Show the page in a browser.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a summary of each run as JSON; no page, unless --output is given.")
    ] = False,
) -> None:
    """Report; see ``register`` for the help text."""
    with errors_in_one_line("report"):
        has_page = output is not None or open_page or not as_json
        if has_page and importlib.util.find_spec("plotly") is None:
            raise ValueError("a page needs plotly: pip install 'headway[plot]', or use --json")
        from headway.report import find_runs, read_run, summarise, write_page

        runs = [read_run(folder) for folder in find_runs(run_dirs)]
        if has_page:
            path = output or (run_dirs[0] / PAGE if len(run_dirs) == 1 else Path(PAGE))
            write_page(runs, path)
            typer.echo(f"wrote {path}", err=as_json)
            if open_page:
                webbrowser.open(path.resolve().as_uri())
        if as_json:
            typer.echo(json.dumps([row.as_dict() for row in summarise(runs)], indent=2, allow_nan=False))
