"""Errors in one line, and signals."""

from __future__ import annotations

import os
import signal

import pytest
import typer

from headway.cli.process import errors_in_one_line, raise_on_signals
from headway.errors import HeadwayError


class TooBig(HeadwayError):
    exit_code = 7


@pytest.mark.parametrize(
    ("error", "line", "exit_code"),
    [
        (ValueError("x is 3"), "headway bake: x is 3", 2),
        (TooBig("too big"), "headway bake: too big", 7),
        (FileNotFoundError(2, "No such file", "cake"), "headway bake: cake: No such file", 2),
        (OSError(28, "No space left"), "headway bake: standard output: No space left", 2),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(capsys, error, line, exit_code):
    with pytest.raises(typer.Exit) as caught, errors_in_one_line("bake"):
        raise error
    assert caught.value.exit_code == exit_code
    assert capsys.readouterr().err == f"{line}\n"


def test_other_errors_pass_unless_they_are_named(capsys):
    with pytest.raises(KeyError), errors_in_one_line("bake"):
        raise KeyError
    with pytest.raises(typer.Exit), errors_in_one_line("bake", (KeyError,)):
        raise KeyError("egg")
    assert capsys.readouterr().err == "headway bake: 'egg'\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_interrupt_the_given_number_of_times(number):
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(each) for each in signals]
    try:
        raise_on_signals(times=2)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)
