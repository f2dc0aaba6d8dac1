"""The end of training and of the process: what is still open then is closed, however the script ends.

A thread that is inside torch when the interpreter goes makes the process abort or hang, and with it the script's exit
code is lost. So connections are cut first, which brings all threads out of torch. Where a script just ends, or has
destroyed torch's process group before, ranks wait a moment for each other: the last messages may still be on their way.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

LEAVING_S = 2.0
"""How long a process that ends waits for the other ranks."""
CLOSING_S = 5.0
"""How long ``close`` waits for the other ranks."""
FAILING_S = 1.0
"""How long it does so while an exception is on its way: the others may never come, and learn of it only then."""
CUTTING_S = 1.0
"""How long threads may take to come out of torch, once their connections are cut."""


class Closable(Protocol):
    """What has connections."""

    def start_leaving(self, deadline: float, *, has_failed: bool) -> Callable[[], None]:
        """Begin to close; return a function that does the rest.

        Other ranks are waited for until the deadline (`time.monotonic`), threads for `CUTTING_S` more.
        """


def closing_deadline() -> float:
    """Return until when to wait for other ranks in all that one ``close`` closes (`time.monotonic`).

    An exception need not mean that this rank has failed: some loops end by one. So the others are waited for, briefly.
    """
    return time.monotonic() + (CLOSING_S if sys.exc_info()[0] is None else FAILING_S)


_open: dict[Closable, int] = {}
"""What is open, oldest first, and the process that has opened it: a forked one must leave it alone."""


def register(closable: Closable) -> None:
    """Close this when the process ends."""
    _open[closable] = os.getpid()


def unregister(closable: Closable) -> None:
    """Forget what has been closed."""
    _open.pop(closable, None)


@atexit.register
def _leave() -> None:
    has_failed = getattr(sys, "last_value", None) is not None
    ours = [closable for closable, process in reversed(_open.items()) if process == os.getpid()]
    deadline = time.monotonic() + LEAVING_S
    finishing = []
    for closable in ours:
        with contextlib.suppress(Exception):  # the others must be closed too
            finishing.append(closable.start_leaving(deadline, has_failed=has_failed))
    for finish in finishing:
        with contextlib.suppress(Exception):
            finish()
