"""What commands share as processes: errors in one line, signals, and privileges for a lab."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from headway.errors import HeadwayError
from headway.lab import possible, unprivileged

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def errors_in_one_line(
    command: str, errors: tuple[type[Exception], ...] = (ValueError, HeadwayError)
) -> Iterator[None]:
    """Print errors that the user can fix as one line on standard error, and exit with their exit code, or 2.

    Args:
        command: Name of the command, for the beginning of the line.
        errors: Exceptions that the user can fix, besides `OSError`.
    """
    try:
        yield
    except BrokenPipeError:  # the reader of our output has gone, and must not be written to at exit either
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
        raise typer.Exit(141) from None
    except OSError as error:
        typer.echo(f"headway {command}: {error.filename or 'standard output'}: {error.strerror}", err=True)
        raise typer.Exit(2) from None
    except errors as error:
        typer.echo(f"headway {command}: {error}", err=True)
        raise typer.Exit(getattr(error, "exit_code", 2)) from None


def raise_on_signals(*, times: int = 1) -> None:
    """Let signals that ask a process to stop raise `KeyboardInterrupt`, and ignore them after the given number."""
    left = times

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            for number in _STOP_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in _STOP_SIGNALS:
        signal.signal(number, interrupt)


def enter_user_namespace_if_needed() -> None:
    """Restart this command in a user namespace if a lab is possible in no other way."""
    if unprivileged.ENTERED_VARIABLE in os.environ or possible.may_make_namespaces():
        return
    if possible.missing_besides_privilege() is None and possible.may_make_user_namespaces():
        unprivileged.restart(sys.argv[1:])
