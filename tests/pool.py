"""A persistent pool of gloo workers: started once for a test run, then handed functions.

Starting processes costs a second, a call here about ten milliseconds. A function runs on the first ``num_ranks``
workers, which are the ranks of the default process group while it runs.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.forked import CONTEXT

_START_TIMEOUT_S = 60.0
_GRACE_S = 3.0
"""How long the other ranks may take once one has failed: most likely they wait for it."""


class RankFailed(Exception):
    """A function raised on some ranks; the message holds each one's traceback."""

    def __init__(self, tracebacks: dict[int, str]) -> None:
        self.tracebacks = tracebacks
        super().__init__("\n".join(f"--- rank {rank} ---\n{text}" for rank, text in sorted(tracebacks.items())))


class RankTimedOut(Exception):
    """Some ranks did not answer in time. The pool has ended its workers and starts new ones on the next call."""

    def __init__(self, ranks: list[int], timeout_s: float) -> None:
        self.ranks = ranks
        super().__init__(f"no answer after {timeout_s:g} s from ranks {ranks}")


class Pool:
    """Up to ``size`` worker processes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._workers: list[Any] = []
        self._pipes: list[Connection] = []
        self._folder = tempfile.TemporaryDirectory(prefix="headway-pool-")
        self._num_groups = 0

    def run(self, function: Callable[..., Any], *args: Any, num_ranks: int = 2, timeout_s: float = 60.0) -> list[Any]:
        """Call ``function(*args)`` on ranks 0 to num_ranks - 1 and return their results in order of rank.

        The function and its arguments are pickled: it must be importable, as a test module's own functions are.
        """
        if not 1 <= num_ranks <= self.size:
            raise ValueError(f"num_ranks is {num_ranks}, but this pool has {self.size} workers")
        if not self._workers:
            self._start()
        self._num_groups += 1
        call = pickle.dumps((function, args))
        for pipe in self._pipes[:num_ranks]:
            pipe.send((self._num_groups, num_ranks, timeout_s, call))
        answers = self._collect(num_ranks, timeout_s)
        failed = {rank: answer for rank, (succeeded, answer) in answers.items() if not succeeded}
        if failed:
            raise RankFailed(failed)
        return [answers[rank][1] for rank in range(num_ranks)]

    def _start(self) -> None:
        for rank in range(self.size):
            ours, theirs = CONTEXT.Pipe()
            worker = CONTEXT.Process(target=_work, args=(rank, theirs, self._folder.name, list(sys.path)), daemon=True)
            worker.start()
            theirs.close()
            self._workers.append(worker)
            self._pipes.append(ours)
        for pipe in self._pipes:
            if not pipe.poll(_START_TIMEOUT_S):
                raise RuntimeError("a pool worker did not start")
            pipe.recv()

    def _collect(self, num_ranks: int, timeout_s: float) -> dict[int, tuple[bool, Any]]:
        rank_of = {pipe: rank for rank, pipe in enumerate(self._pipes[:num_ranks])}
        answers: dict[int, tuple[bool, Any]] = {}
        deadline = time.monotonic() + timeout_s
        while len(answers) < num_ranks:
            waiting = [pipe for pipe, rank in rank_of.items() if rank not in answers]
            ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                self.close()
                silent = [rank_of[pipe] for pipe in waiting]
                failed = {rank: text for rank, (succeeded, text) in answers.items() if not succeeded}
                if failed:
                    raise RankFailed({**failed, **dict.fromkeys(silent, "no answer after another rank failed")})
                raise RankTimedOut(silent, timeout_s)
            for pipe in ready:
                rank = rank_of[pipe]
                try:
                    answers[rank] = pickle.loads(pipe.recv())
                    if not answers[rank][0]:
                        deadline = min(deadline, time.monotonic() + _GRACE_S)
                except EOFError:
                    self.close()
                    raise RankFailed({rank: "the worker process died"}) from None
        return answers

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.kill()
            worker.join()
        for pipe in self._pipes:
            pipe.close()
        self._workers, self._pipes = [], []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._folder.cleanup()


def _work(rank: int, pipe: Connection, folder: str, path: list[str]) -> None:
    """Serve calls until the pipe closes."""
    sys.path[:] = path
    torch.set_num_threads(1)
    pipe.send("ready")
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            group, num_ranks, timeout_s, call = pipe.recv()
            pipe.send(_call(rank, Path(folder) / str(group), num_ranks, timeout_s, call))


def _call(rank: int, store: Path, num_ranks: int, timeout_s: float, call: bytes) -> bytes:
    """Return a pickled (succeeded, result or traceback); what cannot be pickled is a failure like any other."""
    try:
        function, args = pickle.loads(call)
        if dist.is_initialized():  # of the last call: closed only now, when no rank is using it any more
            dist.destroy_process_group()
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(str(store), num_ranks),
            rank=rank,
            world_size=num_ranks,
            timeout=timedelta(seconds=timeout_s),
        )
        dist.barrier()  # a function that fails at once must not disturb ranks that are still connecting
        return pickle.dumps((True, function(*args)))
    except BaseException:
        return pickle.dumps((False, traceback.format_exc()))
