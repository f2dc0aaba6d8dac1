"""Ctrl-C, and what else asks a command to stop."""

from __future__ import annotations

import signal
from types import FrameType

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def raise_when_stopped(*, times: int = 1) -> None:
    """Let signals that ask to stop raise `KeyboardInterrupt`, so often; then a clean-up is no longer interrupted."""
    left = times

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            for number in _STOPPING:
                signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in _STOPPING:
        signal.signal(number, interrupt)
