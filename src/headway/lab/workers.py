"""The workers: one process for each host, with the environment that torchrun would give it."""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from headway.errors import LabError

GRACE_S = 10.0
_TAIL_LINES = 30
_POLL_S = 0.02
_DRAIN_S = 5.0
"""How long readers may take to pass on what dead workers have printed."""

Output = Callable[[int, str], None]


class Place(Protocol):
    """Where a rank runs."""

    @property
    def rank(self) -> int:
        """The rank."""

    def popen(self, command: list[str], *, niceness: int = 0, **options: Any) -> subprocess.Popen[bytes]:
        """Start a process there, in a session of its own."""


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Where ranks meet: the address and port of rank 0, and the interface that they use."""

    address: str
    port: int
    interface: str
    is_one_node: bool = False
    """Whether all ranks are on one machine, and not each on one of its own."""


def worker_environment(rank: int, num_hosts: int, meeting: Meeting, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of one rank: ours, what torchrun sets, and one thread, since the hosts share the cores."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        **extra,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank if meeting.is_one_node else 0),
        "GROUP_RANK": str(0 if meeting.is_one_node else rank),
        "WORLD_SIZE": str(num_hosts),
        "LOCAL_WORLD_SIZE": str(num_hosts if meeting.is_one_node else 1),
        "GROUP_WORLD_SIZE": str(1 if meeting.is_one_node else num_hosts),
        "MASTER_ADDR": meeting.address,
        "MASTER_PORT": str(meeting.port),
        "GLOO_SOCKET_IFNAME": meeting.interface,
        "TP_SOCKET_IFNAME": meeting.interface,
    }


class Workers:
    """The processes of one run. A process is reaped last, so that its number cannot become somebody else's before."""

    def __init__(
        self,
        hosts: Sequence[Place],
        command: Sequence[str],
        *,
        meeting: Meeting,
        extra: Mapping[str, str],
        output: Output,
        niceness: int,
    ) -> None:
        self._output = output
        self._output_error: Exception | None = None
        self._tails: list[collections.deque[str]] = [collections.deque(maxlen=_TAIL_LINES) for _ in hosts]
        self._killed: set[int] = set()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._readers: list[threading.Thread] = []
        self._started_s = time.monotonic()
        try:
            for host in hosts:
                environment = worker_environment(host.rank, len(hosts), meeting, extra)
                self._start(host, list(command), environment, niceness)
        except BaseException:
            self.end(grace_s=0.0)
            raise

    @property
    def exit_codes(self) -> tuple[int, ...]:
        """By rank, as a shell gives them: 128 + n for a process that signal n ended."""
        codes = [process.returncode for process in self._processes]
        return tuple(code if code >= 0 else 128 - code for code in codes)

    @property
    def tails(self) -> tuple[tuple[str, ...], ...]:
        """The last lines that each rank printed."""
        return tuple(tuple(tail) for tail in self._tails)

    def send(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a rank and all it has started; a rank that is killed so has not failed."""
        if number == signal.SIGKILL:
            self._killed.add(rank)
        self._signal_group(self._processes[rank], number)

    def wait(self, *, timeout_s: float | None, grace_s: float, check: Callable[[], None]) -> int | None:
        """Wait until all have ended, end what is left, and return the rank that failed first, or None.

        Once a rank fails of its own, the others get ``grace_s`` to end by themselves. ``check`` is called all the
        while, and may raise.
        """
        first_failed = None
        deadline_s = float("inf") if timeout_s is None else self._started_s + timeout_s
        while not all(_has_ended(process) for process in self._processes):
            check()
            if self._output_error is not None:
                raise self._output_error
            if first_failed is None and (first_failed := self._first_failed()) is not None:
                deadline_s = min(deadline_s, time.monotonic() + grace_s)
            if time.monotonic() >= deadline_s:
                if first_failed is None:
                    raise TimeoutError(f"the workers had not ended after {timeout_s:g} s")
                break
            time.sleep(_POLL_S)
        if first_failed is None:
            first_failed = self._first_failed()
        self.end(grace_s=grace_s)
        if self._output_error is not None:
            raise self._output_error
        return first_failed

    def end(
        self,
        *,
        grace_s: float,
        number: signal.Signals = signal.SIGTERM,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """End all that still run: with a signal, and after the grace with SIGKILL; until then ``check`` is called."""
        for process in self._processes:
            if not _has_ended(process):
                for each in (signal.SIGCONT, number):  # a frozen process hears nothing else
                    self._signal_group(process, each)
        deadline_s = time.monotonic() + grace_s
        while not all(_has_ended(process) for process in self._processes) and time.monotonic() < deadline_s:
            check()
            time.sleep(_POLL_S)
        for process in self._processes:  # also what a worker has left behind in its session
            if process.returncode is None:
                self._signal_group(process, signal.SIGKILL)
                process.wait()

    def drain(self) -> None:
        """Wait until all that was printed has been passed on; what is still running must have been ended before."""
        deadline_s = time.monotonic() + _DRAIN_S
        for reader in self._readers:
            reader.join(timeout=max(0.0, deadline_s - time.monotonic()))

    def _start(self, host: Place, command: list[str], environment: dict[str, str], niceness: int) -> None:
        try:
            process = host.popen(
                command,
                niceness=niceness,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise LabError(f"{command[0]} could not be started: {error.strerror}") from None
        self._processes.append(process)
        reader = threading.Thread(target=self._read, args=(host.rank,), name=f"headway-output-{host.rank}", daemon=True)
        self._readers.append(reader)
        reader.start()

    def _signal_group(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        if process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)

    def _first_failed(self) -> int | None:
        for rank, process in enumerate(self._processes):
            if rank not in self._killed and _has_failed(process):
                return rank
        return None

    def _read(self, rank: int) -> None:
        """Pass on lines; a callback that fails is heard of in ``wait``, but never stops the worker's output."""
        pipe = self._processes[rank].stdout
        assert pipe is not None
        with pipe:
            for raw in pipe:
                line = raw.decode("utf-8", "replace").rstrip("\n")
                self._tails[rank].append(line)
                if self._output_error is None:
                    try:
                        self._output(rank, line)
                    except Exception as error:
                        self._output_error = error


def _peek(process: subprocess.Popen[bytes]) -> os.waitid_result | None:
    """Return how a process ended, without reaping it, or None while it runs."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    return process.returncode is not None or _peek(process) is not None


def _has_failed(process: subprocess.Popen[bytes]) -> bool:
    if process.returncode is not None:
        return process.returncode != 0
    ended = _peek(process)
    return ended is not None and not (ended.si_code == os.CLD_EXITED and ended.si_status == 0)
