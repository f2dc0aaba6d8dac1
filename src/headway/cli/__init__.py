"""The command line. One file for each command, thin."""

from __future__ import annotations

import signal

import typer

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
def _root() -> None:
    """Keep commands as subcommands, also while there is only one."""


def main() -> None:
    """Run the command line. Ctrl-C ends it at once, until a command has something to clean up."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    app()
