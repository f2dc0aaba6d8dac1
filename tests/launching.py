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
    common = {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    # Lightning knows torchrun by these.
    common |= {"LOCAL_WORLD_SIZE": str(num_ranks), "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "none"}
    command = forked.command(script, *args, modules=FRAMEWORKS)
    processes = [
        _start(command, folder, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(num_ranks)
    ]
    return _finish(processes, timeout_s)


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
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
    for process, text in zip(processes, printed, strict=True):
        assert process.returncode == 0, f"exit code {process.returncode}\n{text}"
    return printed
