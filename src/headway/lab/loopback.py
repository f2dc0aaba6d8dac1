"""Workers on this machine, connected by its loopback interface: like torchrun on one node, without a lab."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from headway.lab import leftovers
from headway.lab.results import Outcome
from headway.lab.workers import GRACE_S, Output, Rendezvous, Workers, start_process

_ADDRESS = "127.0.0.1"
_INTERFACE = "lo"


@dataclass(frozen=True)
class LocalHost:
    """This machine, as the host of a worker."""

    rank: int

    def popen(self, command: list[str], *, niceness: int = 0, **options: Any) -> subprocess.Popen[bytes]:
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

    No process that the workers started is left when this returns or raises.

    Args:
        num_workers: Number of workers.
        command: Program and arguments.
        port: The port of rank 0; any free one by default.
        env: Environment variables, in addition to ours and torchrun's.
        output: Called with (rank, line) for every line that a worker prints, on a thread per worker.
        on_progress: Called many times a second.
        timeout_s: When to give up; never by default.
        grace_s: How long the other ranks may go on once one has failed.
        interrupt_grace_s: How long workers may take to end after Ctrl-C; ``grace_s`` by default.
        on_interrupt: Called on Ctrl-C, before workers are told to end.

    Raises:
        ValueError: The port is in use.
        TimeoutError: The workers did not end in time.
        LabError: The program could not be started.
    """
    port = find_port() if port is None else check_port(port)
    rendezvous = Rendezvous(address=_ADDRESS, port=port, interface=_INTERFACE, is_one_node=True)
    mark, started_s = leftovers.new_mark(), time.monotonic()
    with ExitStack() as stack:
        stack.callback(leftovers.end_processes, mark)
        workers = Workers(
            [LocalHost(rank) for rank in range(num_workers)],
            command,
            rendezvous=rendezvous,
            extra={**(env or {}), leftovers.MARK_VARIABLE: mark},
            output=output,
            niceness=0,
        )
        stack.callback(workers.drain)
        stack.callback(leftovers.end_processes, mark)  # first: a pipe that they hold open never ends
        stack.callback(workers.end, grace_s=0.0)
        first_failed = workers.wait(
            timeout_s=timeout_s,
            grace_s=grace_s,
            interrupt_grace_s=interrupt_grace_s,
            on_interrupt=on_interrupt,
            check=on_progress,
        )
    return Outcome(
        exit_codes=workers.exit_codes,
        first_failed=first_failed,
        elapsed_s=time.monotonic() - started_s,
        tails=workers.tails,
    )


def find_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind((_ADDRESS, 0))
        number: int = probe.getsockname()[1]
        return number


def check_port(port: int) -> int:
    """Return the port if it can be used on the loopback interface.

    Raises:
        ValueError: The port is in use, or out of range.
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
