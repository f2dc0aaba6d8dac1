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

from headway.lab.hosts import INTERFACE, Host, address

MASTER_PORT = 29500

_TAIL_LINES = 30
_POLL_S = 0.02

Output = Callable[[int, str], None]


def worker_environment(rank: int, num_hosts: int, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of one rank: ours, what torchrun sets, and one thread, since the hosts share the cores."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        **extra,
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "GROUP_RANK": str(rank),
        "WORLD_SIZE": str(num_hosts),
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_WORLD_SIZE": str(num_hosts),
        "MASTER_ADDR": address(0),
        "MASTER_PORT": str(MASTER_PORT),
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "TP_SOCKET_IFNAME": INTERFACE,
    }


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended."""

    exit_codes: tuple[int, ...]
    """By rank, as a shell gives them: 128 + n for a process that signal n ended."""
    first_failed: int | None
    """The rank that failed first of its own, and not by a ``kill`` of the scenario or because we ended it."""
    elapsed_s: float
    tails: tuple[tuple[str, ...], ...]
    """The last lines that each rank printed."""

    @property
    def exit_code(self) -> int:
        """That of the first rank that failed, or 0."""
        return 0 if self.first_failed is None else self.exit_codes[self.first_failed]


class Workers:
    """The processes of one run."""

    def __init__(
        self, hosts: Sequence[Host], command: Sequence[str], *, extra: Mapping[str, str], output: Output, niceness: int
    ) -> None:
        self._output = output
        self._tails: list[collections.deque[str]] = [collections.deque(maxlen=_TAIL_LINES) for _ in hosts]
        self._killed: set[int] = set()
        self._started_s = time.monotonic()
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for host in hosts:
                self._processes.append(
                    host.popen(
                        list(command),
                        niceness=niceness,
                        env=worker_environment(host.rank, len(hosts), extra),
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                    )
                )
        except BaseException:
            self.end(grace_s=0.0)
            raise
        self._readers = [
            threading.Thread(target=self._read, args=(rank,), name=f"headway-output-{rank}", daemon=True)
            for rank in range(len(hosts))
        ]
        for reader in self._readers:
            reader.start()

    def send(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a rank and all it has started."""
        if number == signal.SIGKILL:
            self._killed.add(rank)
        with suppress(ProcessLookupError):
            os.killpg(self._processes[rank].pid, number)

    def wait(self, *, timeout_s: float | None, grace_s: float, check: Callable[[], None]) -> RunResult:
        """Wait until all have ended; once one fails of its own, the others get ``grace_s`` to end by themselves.

        ``check`` is called all the while, and may raise.
        """
        first_failed = None
        deadline_s = float("inf") if timeout_s is None else self._started_s + timeout_s
        while any(process.poll() is None for process in self._processes):
            check()
            if first_failed is None:
                first_failed = self._first_failed()
                if first_failed is not None:
                    deadline_s = min(deadline_s, time.monotonic() + grace_s)
            if time.monotonic() >= deadline_s:
                if first_failed is None:
                    raise TimeoutError(f"the workers had not ended after {timeout_s:g} s")
                break
            time.sleep(_POLL_S)
        if first_failed is None:
            first_failed = self._first_failed()
        self.end(grace_s=grace_s)
        return RunResult(
            exit_codes=tuple(_shell_code(process.returncode) for process in self._processes),
            first_failed=first_failed,
            elapsed_s=time.monotonic() - self._started_s,
            tails=tuple(tuple(tail) for tail in self._tails),
        )

    def end(self, *, grace_s: float, number: signal.Signals = signal.SIGTERM) -> None:
        """End all that still run: with a signal, and after the grace with SIGKILL."""
        for process in self._processes:
            for each in (signal.SIGCONT, number):  # a frozen process hears nothing else
                if process.poll() is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, each)
        deadline_s = time.monotonic() + grace_s
        while any(process.poll() is None for process in self._processes) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        for process in self._processes:  # also what a worker has left behind in its session
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for reader in getattr(self, "_readers", []):
            reader.join(timeout=1.0)

    def _first_failed(self) -> int | None:
        failed = [
            rank
            for rank, process in enumerate(self._processes)
            if process.poll() not in (None, 0) and rank not in self._killed
        ]
        return failed[0] if failed else None

    def _read(self, rank: int) -> None:
        pipe = self._processes[rank].stdout
        assert pipe is not None
        with pipe:
            for raw in pipe:
                line = raw.decode("utf-8", "replace").rstrip("\n")
                self._tails[rank].append(line)
                self._output(rank, line)


def _shell_code(code: int) -> int:
    return code if code >= 0 else 128 - code
