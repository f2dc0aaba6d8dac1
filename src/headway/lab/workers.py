"""The workers: one process per host, with the environment that torchrun would give it."""

from __future__ import annotations

import collections
import ctypes
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
"""How long readers may take to pass on what ended workers have printed."""
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl  # looked up before any fork: a forked child must not do it

Output = Callable[[int, str], None]


def start_process(command: list[str], *, niceness: int = 0, **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that leads a session of its own and is killed when the thread that started it ends."""

    def prepare() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a launcher in the background ignores it; workers must not
        os.nice(niceness)

    return subprocess.Popen(command, start_new_session=True, preexec_fn=prepare, **options)


class WorkerHost(Protocol):
    """The host of a rank."""

    @property
    def rank(self) -> int:
        """The rank."""

    def popen(self, command: list[str], *, niceness: int = 0, **options: Any) -> subprocess.Popen[bytes]:
        """Start a process on the host, in a session of its own."""


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """How ranks find each other: the address and port of rank 0, and the interface that they use."""

    address: str
    port: int
    interface: str
    is_one_node: bool = False
    """Whether all ranks are on one machine, rather than one machine each."""


def worker_environment(rank: int, num_hosts: int, rendezvous: Rendezvous, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a rank: ours, torchrun's variables, and one thread, since the hosts share the cores."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        **extra,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank if rendezvous.is_one_node else 0),
        "GROUP_RANK": str(0 if rendezvous.is_one_node else rank),
        "WORLD_SIZE": str(num_hosts),
        "LOCAL_WORLD_SIZE": str(num_hosts if rendezvous.is_one_node else 1),
        "GROUP_WORLD_SIZE": str(1 if rendezvous.is_one_node else num_hosts),
        "MASTER_ADDR": rendezvous.address,
        "MASTER_PORT": str(rendezvous.port),
        "GLOO_SOCKET_IFNAME": rendezvous.interface,
        "TP_SOCKET_IFNAME": rendezvous.interface,
    }


class Workers:
    """The processes of one run. They are reaped last, so that their numbers cannot be reused before."""

    def __init__(
        self,
        hosts: Sequence[WorkerHost],
        command: Sequence[str],
        *,
        rendezvous: Rendezvous,
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
                environment = worker_environment(host.rank, len(hosts), rendezvous, extra)
                self._start(host, list(command), environment, niceness)
        except BaseException:
            self.end(grace_s=0.0)
            raise

    @property
    def exit_codes(self) -> tuple[int, ...]:
        """By rank, as in a shell: 128 + n for a process ended by signal n."""
        codes = [process.returncode for process in self._processes]
        return tuple(code if code >= 0 else 128 - code for code in codes)

    @property
    def tails(self) -> tuple[tuple[str, ...], ...]:
        """The last lines that each rank printed."""
        return tuple(tuple(tail) for tail in self._tails)

    def send(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a rank and all that it started; a rank killed this way does not count as failed."""
        if number == signal.SIGKILL:
            self._killed.add(rank)
        self._signal_group(self._processes[rank], number)

    def wait(
        self,
        *,
        timeout_s: float | None,
        grace_s: float,
        interrupt_grace_s: float | None,
        on_interrupt: Callable[[], None],
        check: Callable[[], None],
    ) -> int | None:
        """Wait until all have ended, and return the rank that failed first, or None.

        Once a rank fails by itself, the others have ``grace_s`` to end. On Ctrl-C all have ``interrupt_grace_s``
        (``grace_s`` if None). ``check`` is called repeatedly, and may raise.
        """
        try:
            return self._wait(timeout_s, grace_s, check)
        except KeyboardInterrupt:
            on_interrupt()
            patience_s = grace_s if interrupt_grace_s is None else interrupt_grace_s
            self.end(grace_s=patience_s, number=signal.SIGINT, check=check)
            raise

    def _wait(self, timeout_s: float | None, grace_s: float, check: Callable[[], None]) -> int | None:
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
        """End all that still run: with a signal, and after ``grace_s`` with SIGKILL; until then ``check`` is called."""
        for process in self._processes:
            if not _has_ended(process):
                for each in (signal.SIGCONT, number):  # a frozen process receives nothing else
                    self._signal_group(process, each)
        deadline_s = time.monotonic() + grace_s
        while not all(_has_ended(process) for process in self._processes) and time.monotonic() < deadline_s:
            check()
            time.sleep(_POLL_S)
        for process in self._processes:  # including what a worker has left in its session
            if process.returncode is None:
                self._signal_group(process, signal.SIGKILL)
                process.wait()

    def drain(self) -> None:
        """Wait until all output has been passed on; all processes must have ended before."""
        deadline_s = time.monotonic() + _DRAIN_S
        for reader in self._readers:
            reader.join(timeout=max(0.0, deadline_s - time.monotonic()))

    def _start(self, host: WorkerHost, command: list[str], environment: dict[str, str], niceness: int) -> None:
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
        """Pass on lines; an error in the callback is raised by `wait`, but never stops the worker's output."""
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
