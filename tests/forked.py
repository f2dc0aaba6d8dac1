"""Scripts in processes of their own, without the seconds that importing torch takes: forked from one that has it.

`command` gives what to start in place of ``python script args``, wherever that would be started: by a launcher, or on
an emulated host. It starts a small client, which hands its files, environment and network to a server of this test
run; the server forks a process that runs the script with them. When either of the two ends, so does the other.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.preloaded"])

_CLIENT = Path(__file__).with_name("forked_client.py")
_CLONE_NEWNET, _PR_SET_PDEATHSIG = 0x40000000, 1
_REAL_END = "TESTS_FORKED_REAL_END"
_libc = ctypes.CDLL(None, use_errno=True)


def command(script: Path, *args: str, modules: tuple[str, ...] = ()) -> list[str]:
    """Return the command that runs a script in a forked process.

    Args:
        script: Its file.
        args: Its arguments.
        modules: What else it imports that takes long: loaded once for all that name the same.
    """
    return [sys.executable, "-I", "-S", str(_CLIENT), _server(modules), str(script), *args]


@functools.cache
def _server(modules: tuple[str, ...]) -> str:
    """Start a server with some modules loaded, and return its address; it ends with the test run."""
    folder = tempfile.mkdtemp(prefix="headway-forked-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    address = f"{folder}/socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(32)
        CONTEXT.Process(target=_serve, args=(listener, modules), daemon=True).start()
    return address


def _serve(listener: socket.socket, modules: tuple[str, ...]) -> None:
    for module in modules:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _keep(connection)
            os._exit(0)
        connection.close()


def _keep(connection: socket.socket) -> None:
    """Fork the script's process, and wait until it, or the client, has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, files, _, _ = socket.recv_fds(connection, 1, 4)
    with connection.makefile() as text:
        call = json.loads(text.readline())
    if not _enter_network(files.pop()):
        connection.sendall(b"refused")
        return
    process = os.fork()
    if process == 0:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        connection.close()
        _run(call, files)
    handle = os.pidfd_open(process)
    ended, _, _ = select.select([handle, connection], [], [])
    if handle not in ended:
        os.kill(process, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    connection.sendall(str(code if code >= 0 else 128 - code).encode())


def _enter_network(namespace: int) -> bool:
    if os.fstat(namespace).st_ino == os.stat("/proc/self/ns/net").st_ino:
        return True
    return _libc.setns(namespace, _CLONE_NEWNET) == 0


def _run(call: dict, files: list[int]) -> None:
    """Run the script as ``python script args`` would, but its end cleans up nothing, unless that is asked for."""
    code = 1
    try:
        os.setpriority(os.PRIO_PROCESS, 0, call["niceness"])
        os.chdir(call["folder"])
        os.environ.clear()
        os.environ.update(call["environment"])
        tempfile.tempdir = None  # that of the server may be known already
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, buffering=1, closefd=False) for number, mode in enumerate("rww")
        )
        sys.argv = call["argv"]
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if _REAL_END in os.environ:
            _end(code)
        os._exit(code)


def _end(code: int) -> None:
    """End as the interpreter does; print when the exit handlers have run, since what follows takes its own time."""
    gc.freeze()
    threading._shutdown()
    atexit._run_exitfuncs()
    print(json.dumps({"left_at": time.monotonic()}), flush=True)
    ctypes.pythonapi.Py_Exit(code)


class ForkedScripts:
    """Several scripts, one a rank; a context that ends what is left.

    Args:
        folder: Where their output goes.
        has_real_end: Whether a script that is over ends as Python does: threads, exit handlers, finalisation.
    """

    def __init__(self, folder: Path, *, has_real_end: bool = False) -> None:
        self._folder = folder
        self._environment = {**os.environ, _REAL_END: "1"} if has_real_end else None
        self._processes: list[subprocess.Popen] = []

    def __enter__(self) -> ForkedScripts:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def start(self, script: Path, *args: str) -> None:
        """Start one more."""
        place = len(self._processes)
        with self._output_of(place).open("w") as output, self._errors_of(place).open("w") as errors:
            pipes = {"stdout": output, "stderr": errors, "env": self._environment}
            self._processes.append(subprocess.Popen(command(script, *args), **pipes))

    def outputs(self, ranks: Iterable[int], timeout_s: float) -> dict[int, str]:
        """Wait for some, and return what they have printed."""
        deadline_s = time.monotonic() + timeout_s
        ranks = list(ranks)
        for rank in ranks:
            self._processes[rank].wait(max(0.1, deadline_s - time.monotonic()))
        return {rank: self._output_of(rank).read_text() for rank in ranks}

    def errors(self, rank: int) -> str:
        """Return what one has printed to stderr so far."""
        return self._errors_of(rank).read_text()

    def wait(self, timeout_s: float) -> list[int]:
        """Wait for all, and return how they have ended."""
        self.outputs(range(len(self._processes)), timeout_s)
        return self.exit_codes()

    def exit_codes(self) -> list[int]:
        """Return how those that have ended have."""
        return [process.poll() for process in self._processes]

    def _output_of(self, rank: int) -> Path:
        return self._folder / f"output-{rank}"

    def _errors_of(self, rank: int) -> Path:
        return self._folder / f"errors-{rank}"
