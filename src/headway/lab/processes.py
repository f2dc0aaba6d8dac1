"""Starting a worker's process."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from typing import Any

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl  # found before any fork: a forked child must not search


def start_process(command: list[str], *, niceness: int = 0, **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that leads a session of its own and dies with the thread that has started it."""

    def prepare() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a launcher in the background ignores it, and so would we
        os.nice(niceness)

    return subprocess.Popen(command, start_new_session=True, preexec_fn=prepare, **options)
