"""Stopping in order: a signal reaches ranks at different steps, or only some of them; all end after the same one."""

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
"""How long ranks may take to tell their steps; torchrun kills what has not ended 30 s after a signal."""
_LOOK_EVERY_S = 1.0
_KEY = "headway/stop"


def stop_on_signals() -> threading.Event:
    """Return an event that SIGINT and SIGTERM set at once, also while the main thread waits in a collective.

    A handler in Python would run only when the main thread is back from there; what a signal writes to the wake-up
    socket is read by a thread. Call it in the main thread.
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

    A rank that is asked to stop tells the others through the store. Each says which step it is in, and after that step
    waits until all have said theirs. The furthest is the last: nobody has gone beyond it, and everybody can still get
    there. The talk is on a thread and connections of its own, so that a rank in the middle of a collective answers too.
    Every rank makes one.

    **Cost**: a look at the store every second; when somebody asks, one all-gather of a number.

    Args:
        asked: Is set when this rank is to stop.
        store: That of the process group.
        first_step: The step that comes first.
    """

    def __init__(self, asked: threading.Event, store: Store, first_step: int) -> None:
        self._asked = asked
        self._store = store
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=_AGREEMENT_S))
        self._lock = threading.Lock()
        self._step_in_hand = first_step
        self._has_told = False
        self._is_over = threading.Event()
        self._last: int | None = None
        self._agreed = threading.Event()
        self._talker = threading.Thread(target=self._talk, name="headway-stop", daemon=True)
        self._talker.start()

    def is_last(self, step: int) -> bool:
        """Return whether a step that has just ended is the last one; wait for the others if that is not known yet."""
        with self._lock:
            if not self._has_told:
                self._step_in_hand = step + 1
                return False
        self._agreed.wait(2 * _AGREEMENT_S)
        return self._last is None or step >= self._last

    def close(self) -> None:
        """Listen no longer: training is over. A talk that has begun is waited for."""
        self._is_over.set()
        if self._has_told:
            self._talker.join(2 * _AGREEMENT_S)

    def _talk(self) -> None:
        while not self._asked.wait(_LOOK_EVERY_S) and not self._is_over.is_set() and not self._heard():
            pass
        if self._is_over.is_set():
            return
        with suppress(RuntimeError):  # rank 0, which keeps the store, is gone
            self._store.set(_KEY, "1")
        with self._lock:
            own = torch.tensor([self._step_in_hand])
            self._has_told = True
        steps = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        with suppress(RuntimeError):  # a rank is gone: each stops where it is
            dist.all_gather(steps, own, group=self._group)
            own = torch.stack(steps).max()
        self._last = int(own)
        self._agreed.set()

    def _heard(self) -> bool:
        try:
            return bool(self._store.check([_KEY]))
        except RuntimeError:
            return False
