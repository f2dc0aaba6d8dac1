"""The engine: a thread that runs tasks in order while backward goes on."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable

from headway.collectives.ends import register, unregister

Task = Callable[[], None]


class Engine:
    """Runs tasks one after the other on a thread of its own.

    After a task has failed, no other task is run: each is given up instead, so that nothing waits for it, and
    `raise_error` raises the error from then on.

    Args:
        name: The name of the thread.
    """

    def __init__(self, name: str = "headway-engine") -> None:
        self._tasks: queue.SimpleQueue[tuple[Task, Task] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._num_open = 0
        self._is_closed = False
        self._idle = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()
        register(self)

    def submit(self, task: Task, give_up: Task) -> None:
        """Run a task after those before it, or ``give_up`` if one of them failed or it fails itself."""
        if self._is_closed:
            raise ValueError("this engine is closed: DDP keeps its hook for life, so wrap the model again")
        with self._idle:
            self._num_open += 1
        self._tasks.put((task, give_up))

    def raise_error(self) -> None:
        """Raise the error of the task that failed, with its traceback, if one did."""
        if self._error is not None:
            raise self._error

    def drain(self, timeout_s: float | None = None) -> None:
        """Wait until all submitted tasks have run; raise the error of one that failed, or `TimeoutError`."""
        with self._idle:
            if not self._idle.wait_for(lambda: self._num_open == 0, timeout_s):
                raise TimeoutError(f"tasks are still running after {timeout_s} s")
        self.raise_error()

    def close(self) -> None:
        """Run all submitted tasks, and end the thread."""
        if not self._is_closed:
            self._is_closed = True
            unregister(self)
            self._tasks.put(None)
            self._thread.join()

    def start_leaving(self, deadline: float, *, has_failed: bool) -> Callable[[], None]:
        """At the end of the process, return a function that waits for the tasks, whose connections are cut first."""

        def finish() -> None:
            with contextlib.suppress(Exception):
                self.drain(max(deadline - time.monotonic(), 0.0))

        return finish

    def _work(self) -> None:
        while (item := self._tasks.get()) is not None:
            try:
                self._run(*item)
            finally:
                with self._idle:
                    self._num_open -= 1
                    self._idle.notify_all()

    def _run(self, task: Task, give_up: Task) -> None:
        if self._error is None:
            try:
                task()
            except BaseException as error:
                self._error = error
        if self._error is not None:
            with contextlib.suppress(Exception):  # nothing may hide the first error or end the thread
                give_up()
