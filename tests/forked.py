"""Scripts in processes of their own, without the seconds that importing torch takes: forked from one that has."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import time
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch.distributed", "headway.ddp", "headway.gossip"])


class ForkedScript:
    """Runs a script as ``python script args`` would, but for its end: nothing is cleaned up when it is over."""

    def __init__(self, script: Path, *args: str, output: Path) -> None:
        self._output = output
        self._process = _CONTEXT.Process(target=_run, args=(str(script), args, str(output)), daemon=True)
        self._process.start()

    def communicate(self, timeout: float) -> str:
        """Wait until it has ended, and return what it has printed."""
        self._process.join(timeout)
        assert not self._process.is_alive(), f"still running after {timeout:g} s"
        return self._output.read_text()

    def kill(self) -> None:
        """End it, stopped or not."""
        if self._process.is_alive():
            self._process.kill()
        self._process.join(10)
        self._process.close()


def _run(script: str, args: tuple[str, ...], output: str) -> None:
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.argv = [script, *args]
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        sys.stdout.flush()


class ForkedScripts:
    """Several of them, one a rank; a context that ends what is left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._scripts: list[ForkedScript] = []

    def __enter__(self) -> ForkedScripts:
        return self

    def __exit__(self, *_: object) -> None:
        for script in self._scripts:
            script.kill()

    def start(self, script: Path, *args: str) -> None:
        """Start one more."""
        output = self._folder / f"output-{len(self._scripts)}"
        self._scripts.append(ForkedScript(script, *args, output=output))

    def outputs(self, ranks: list[int], timeout_s: float) -> dict[int, str]:
        """Wait for some, and return what they have printed."""
        deadline_s = time.monotonic() + timeout_s
        return {rank: self._scripts[rank].communicate(max(0.1, deadline_s - time.monotonic())) for rank in ranks}
