"""Workers on this machine, joined by its loopback interface: what torchrun does on one node, without a lab."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from headway.lab import leftovers
from headway.lab.processes import start_process
from headway.lab.results import Outcome
from headway.lab.workers import GRACE_S, Meeting, Output, Workers

_ADDRESS = "127.0.0.1"
_INTERFACE = "lo"


@dataclass(frozen=True)
class LocalHost:
    """A place to start a worker at: this machine."""

    rank: int

    def popen(self, command: list[str], *, niceness: int = 0, **options: Any) -> subprocess.Popen[bytes]:
        """Start a process."""
        return start_process(command, niceness=niceness, **options)


def run_on_loopback(
    num_workers: int,
    command: Sequence[str],
    *,
    port: int | None = None,
    env: Mapping[str, str] | None = None,
    output: Output = lambda rank, line: None,
    on_progress: Callable[[], None] = lambda: None,
    timeout_s: float | None = None,
    grace_s: float = GRACE_S,
    interrupt_grace_s: float | None = None,
    on_interrupt: Callable[[], None] = lambda: None,
) -> Outcome:
    """Start the command once for each worker, as torchrun would, and wait until all have ended.

    Nothing that the workers have started is left when this returns or raises.

    Args:
        num_workers: How many.
        command: Program and arguments.
        port: Where workers meet; any that is free, if not given.
        env: Variables beside ours and torchrun's.
        output: Called with (rank, line) for every line a worker prints, from a thread of its own.
        on_progress: Called many times a second.
        timeout_s: When to give up.
        grace_s: How long the others may go on once a rank has failed.
        interrupt_grace_s: How long workers may take to end in order after Ctrl-C; ``grace_s`` if not given.
        on_interrupt: Called when that time begins.

    Raises:
        ValueError: The port is in use.
        TimeoutError: The workers had not ended in time.
        LabError: The program could not be started.
    """
    port = find_port() if port is None else check_port(port)
    meeting = Meeting(address=_ADDRESS, port=port, interface=_INTERFACE, is_one_node=True)
    mark, started_s = leftovers.new_mark(), time.monotonic()
    with ExitStack() as stack:
        stack.callback(leftovers.end_processes, mark)
        workers = Workers(
            [LocalHost(rank) for rank in range(num_workers)],
            command,
            meeting=meeting,
            extra={**(env or {}), leftovers.MARK_VARIABLE: mark},
            output=output,
            niceness=0,
        )
        stack.callback(workers.drain)
        stack.callback(leftovers.end_processes, mark)  # before that: what they hold open is never read to its end
        stack.callback(workers.end, grace_s=0.0)
        try:
            first_failed = workers.wait(timeout_s=timeout_s, grace_s=grace_s, check=on_progress)
        except KeyboardInterrupt:
            on_interrupt()
            patience_s = grace_s if interrupt_grace_s is None else interrupt_grace_s
            workers.end(grace_s=patience_s, number=signal.SIGINT, check=on_progress)
            raise
    return Outcome(
        exit_codes=workers.exit_codes,
        first_failed=first_failed,
        elapsed_s=time.monotonic() - started_s,
        tails=workers.tails,
    )


def find_port() -> int:
    """Return a port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind((_ADDRESS, 0))
        number: int = probe.getsockname()[1]
        return number


def check_port(port: int) -> int:
    """Return a port of the loopback interface, if it can be used.

    Raises:
        ValueError: It is in use, or no port at all.
    """
    if not 1 <= port <= 65535:
        raise ValueError(f"port is {port}, but must be between 1 and 65535; give none for any that is free")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_ADDRESS, port))
        except OSError as error:
            raise ValueError(
                f"port {port} cannot be used ({error.strerror}): give another one, or none for any that is free"
            ) from None
    return port
