"""Programs of several processes, started as a user would, and ended whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
from pathlib import Path

from tests import forked

FRAMEWORKS = ("lightning.pytorch", "transformers.trainer", "accelerate")


def run(command: list[str], folder: Path, *, timeout_s: float = 90, **environment: str) -> str:
    """Run a program and all it starts, in a folder; return what it has printed, or fail with it."""
    return _finish([_start(command, folder, environment)], timeout_s)[0]


def run_ranks(script: Path, folder: Path, *args: str, num_ranks: int = 2, timeout_s: float = 90) -> list[str]:
    """Run a script on ranks, with the environment of torchrun but without its seconds; return what each prints."""
    with Ranks(script, folder, *args, num_ranks=num_ranks, modules=FRAMEWORKS) as ranks:
        for rank in range(num_ranks):
            ranks.start(rank)
        ended = ranks.finish(timeout_s)
    for code, text in ended:
        assert code == 0, f"exit code {code}\n{text}"
    return [text for _, text in ended]


class Ranks:
    """Processes of ranks, each started when it is asked for, and again if it is asked for again."""

    def __init__(self, script: Path, folder: Path, *args: str, num_ranks: int, modules: tuple[str, ...] = ()) -> None:
        self._command = forked.command(script, *args, modules=modules)
        self._folder = folder
        self._environment = {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        # Lightning knows torchrun by these.
        self._environment |= {"LOCAL_WORLD_SIZE": str(num_ranks), "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "none"}
        self._processes: list[subprocess.Popen] = []

    def start(self, rank: int) -> None:
        environment = {**self._environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        self._processes.append(_start(self._command, self._folder, environment))

    def finish(self, timeout_s: float = 90) -> list[tuple[int, str]]:
        """Wait for all; return the exit code of each, and what it has printed, in the order of their starts."""
        return [(process.communicate(timeout=timeout_s)[0], process.returncode)[::-1] for process in self._processes]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._processes)


def json_of(printed: str) -> dict:
    """Return what a rank has printed as a line of JSON."""
    return json.loads(next(line for line in printed.splitlines() if line.startswith('{"')))


def free_port() -> int:
    """Return a port that nobody listens on, below those that connections get: none takes it before it is used."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(first // 2, first)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def _start(command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.Popen:
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=folder, env=env, start_new_session=True, **pipes)


def _finish(processes: list[subprocess.Popen], timeout_s: float) -> list[str]:
    """Wait for all; leave nothing behind of what they have started."""
    try:
        printed = [process.communicate(timeout=timeout_s)[0] for process in processes]
    finally:
        _end(processes)
    for process, text in zip(processes, printed, strict=True):
        assert process.returncode == 0, f"exit code {process.returncode}\n{text}"
    return printed


def _end(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
