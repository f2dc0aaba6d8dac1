"""The engine: one thread that does the work of a hook, in order, while backward goes on."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

Task = Callable[[], None]


class Engine:
    """Runs tasks one after the other on a thread of its own.

    After a task has failed no other is run: each is given up instead, so that nobody waits for it, and the error is
    raised by `raise_error` for ever after.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str = "headway-engine") -> None:
        self._tasks: queue.SimpleQueue[tuple[Task, Task] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._num_open = 0
        self._is_closed = False
        self._idle = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, task: Task, give_up: Task) -> None:
        """Run a task after those before it, or ``give_up`` if one of them failed or it fails itself."""
        if self._is_closed:
            raise ValueError("this engine is closed: DDP keeps its hook for life, so wrap the model anew")
        with self._idle:
            self._num_open += 1
        self._tasks.put((task, give_up))

    def raise_error(self) -> None:
        """Raise what made a task fail, with the place where it happened as its traceback."""
        if self._error is not None:
            raise self._error

    def drain(self, timeout_s: float | None = None) -> None:
        """Wait until all that was submitted has been run; then raise what failed, or `TimeoutError` if it has not."""
        with self._idle:
            if not self._idle.wait_for(lambda: self._num_open == 0, timeout_s):
                raise TimeoutError(f"there is still something to do after {timeout_s} s")
        self.raise_error()

    def close(self) -> None:
        """Run what was submitted, and end the thread."""
        if not self._is_closed:
            self._is_closed = True
            self._tasks.put(None)
            self._thread.join()

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
            with contextlib.suppress(Exception):  # nothing may hide the first error, nor end the thread
                give_up()
