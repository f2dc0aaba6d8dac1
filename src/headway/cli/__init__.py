"""The command line. One file for each command, thin."""

from __future__ import annotations

import typer

from headway.cli import emulate, plan, probe

app = typer.Typer(
    name="headway",
    help="Keeps PyTorch data-parallel training moving over networks that are slow, far apart or keep changing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
emulate.register(app)
plan.register(app)
probe.register(app)


@app.callback()
def _root() -> None:
    """Keep commands as subcommands, also while there is only one."""


def main() -> None:
    """Run the command line."""
    app()
