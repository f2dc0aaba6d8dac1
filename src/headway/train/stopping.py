"""Stopping all ranks after the same step, though a signal reaches them at different steps, or only some of them."""

from __future__ import annotations

import signal
import socket
import threading
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGREEMENT_S = 20.0
"""Time for ranks to exchange their steps; torchrun kills ranks that have not ended 30 s after a signal."""
_POLL_S = 1.0
_KEY = "headway/stop"


def stop_on_signals() -> threading.Event:
    """Return an event that SIGINT and SIGTERM set at once, even while the main thread waits in a collective.

    A Python signal handler would run only when the main thread returns from there; so a thread reads the byte that a
    signal writes to the wake-up socket. Call it in the main thread.
    """
    asked = threading.Event()
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)  # the byte on the socket is what counts
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def listen() -> None:
        with reader, writer:
            while received := reader.recv(1):
                if received[0] in SIGNALS:
                    asked.set()

    threading.Thread(target=listen, name="headway-signals", daemon=True).start()
    return asked


class Stop:
    """Agrees with the other ranks on the last step.

    A rank that is asked to stop sets a key in the store. Then every rank sends the number of its current step, and
    after that step waits until all have sent theirs. The highest is the last step: no rank has gone beyond it, and all
    can still reach it. A thread with its own process group does this, so that a rank answers in the middle of a
    collective too. Every rank makes a `Stop`.

    **Cost**: a look at the store every second; when a rank is asked to stop, one all-gather of a number.

    Args:
        asked: Event that asks this rank to stop.
        store: Store of the process group.
        first_step: Number of the first step.
    """

    def __init__(self, asked: threading.Event, store: Store, first_step: int) -> None:
        self._asked = asked
        self._store = store
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=_AGREEMENT_S))
        self._lock = threading.Lock()
        self._current_step = first_step
        self._has_sent = False
        self._is_over = threading.Event()
        self._last: int | None = None
        self._agreed = threading.Event()
        self._thread = threading.Thread(target=self._agree, name="headway-stop", daemon=True)
        self._thread.start()

    def is_last(self, step: int) -> bool:
        """Return whether a step that has just ended is the last one; wait while ranks agree on it."""
        with self._lock:
            if not self._has_sent:
                self._current_step = step + 1
                return False
        self._agreed.wait(2 * _AGREEMENT_S)
        return self._last is None or step >= self._last

    def close(self) -> None:
        """Stop listening, after training; wait for an agreement that has begun."""
        self._is_over.set()
        if self._has_sent:
            self._thread.join(2 * _AGREEMENT_S)

    def _agree(self) -> None:
        while not self._asked.wait(_POLL_S) and not self._is_over.is_set() and not self._is_key_set():
            pass
        if self._is_over.is_set():
            return
        with suppress(RuntimeError):  # rank 0, which keeps the store, is gone
            self._store.set(_KEY, "1")
        with self._lock:
            own = torch.tensor([self._current_step])
            self._has_sent = True
        steps = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        with suppress(RuntimeError):  # a rank is gone: each stops after its current step
            dist.all_gather(steps, own, group=self._group)
            own = torch.stack(steps).max()
        self._last = int(own)
        self._agreed.set()

    def _is_key_set(self) -> bool:
        try:
            return bool(self._store.check([_KEY]))
        except RuntimeError:
            return False
