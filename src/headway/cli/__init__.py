"""The command line, with a module for each command."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from headway._plugins import load_plugins
from headway.cli import doctor, emulate, plan, probe, report, train

app = typer.Typer(
    name="headway",
    help="Keeps PyTorch data-parallel training moving over networks that are slow, far apart or keep changing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (train, report, emulate, plan, probe, doctor):
    command.register(app)


@app.callback()
def _root(
    plugins: Annotated[
        list[str] | None,
        typer.Option("--plugin", metavar="MODULE", help="Import a module first, which registers exchanges."),
    ] = None,
) -> None:
    try:
        load_plugins(plugins or ())
    except ValueError as error:
        typer.echo(f"headway: {error}", err=True)
        raise typer.Exit(2) from None


def main() -> None:
    """Run the command line. Ctrl-C ends it at once, unless a command has to clean up."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    app()
