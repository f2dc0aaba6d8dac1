"""Point-to-point messages of torch.distributed on a process group of our own; ranks are those of the group."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

_FOREVER_S = 1e8
GRACE_S = 1.0
"""How long past the deadline ranks tell each other which ranks are missing, before they give up."""


class BrokenWire(RuntimeError):
    """A wait failed: the connection to ``peer`` (None if unknown) is gone, or the deadline has passed."""

    def __init__(self, peer: int | None, *, timed_out: bool, cause: str) -> None:
        self.peer = peer
        self.timed_out = timed_out
        super().__init__(cause)


_NETWORK_TROUBLE = re.compile("connection|timed out|timeout|broken pipe|socket|unreachable|gloo", re.IGNORECASE)


def as_broken_wire(error: RuntimeError, deadline: float, peer: int | None = None) -> BrokenWire | None:
    """Return an error of torch.distributed as a `BrokenWire`; None if it is not about the network.

    >>> as_broken_wire(RuntimeError("Connection closed by peer"), time.monotonic() + 1).timed_out
    False
    """
    if isinstance(error, BrokenWire):
        return error
    if not _NETWORK_TROUBLE.search(str(error)):
        return None
    return BrokenWire(peer, timed_out=time.monotonic() >= deadline, cause=str(error))


@contextmanager
def _naming(peer: int, deadline: float = math.inf) -> Iterator[None]:
    """Name the peer in errors of the network."""
    try:
        yield
    except RuntimeError as error:
        broken = as_broken_wire(error, deadline, peer)
        if broken is None:
            raise
        raise broken from error


@dataclass(frozen=True, slots=True)
class Pending:
    """A send or receive that has been started; it keeps the tensor alive until it is complete."""

    work: dist.Work
    peer: int
    tensor: Tensor


class Wire:
    """Sends and receives bytes; errors name the peer."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    @staticmethod
    def as_bytes(tensor: Tensor) -> Tensor:
        """Return the same memory as bytes, since Gloo does not know all types."""
        return tensor.view(torch.uint8)

    def send(self, payload: Tensor, peer: int, tag: int) -> Pending:
        """Start sending bytes."""
        with _naming(peer):
            work = dist.isend(payload, group=self.group, tag=tag, group_dst=peer)
        assert work is not None
        return Pending(work, peer, payload)

    def receive(self, target: Tensor, peer: int, tag: int) -> Pending:
        """Start receiving into a tensor."""
        target = self.as_bytes(target)
        with _naming(peer):
            work = dist.irecv(target, group=self.group, tag=tag, group_src=peer)
        assert work is not None
        return Pending(work, peer, target)

    def wait(self, pending: Pending, deadline: float, grace_s: float = GRACE_S) -> None:
        """Wait until it is complete, but at most until some time after the deadline.

        Gloo closes all connections of the group when a wait times out: the grace period is for exchanging notices.
        """
        remaining_s = max(deadline - time.monotonic(), 0.0) + grace_s
        with _naming(pending.peer, deadline):
            pending.work.wait(timedelta(seconds=remaining_s))

    def wait_for_ever(self, pending: Pending) -> None:
        """Wait until it is complete or its connection is gone; for threads that others wait for with a deadline.

        A deadline here would close all connections of the group, not only the late one.
        """
        self.wait(pending, time.monotonic() + _FOREVER_S)

    def release(self) -> None:
        """Drop the group for good: one that outlives the interpreter makes torch abort."""
        vars(self).pop("group", None)

    def close(self, peers: Iterable[int]) -> None:
        """Close every connection of the group, so that no rank waits for this one any more.

        Gloo has no call for it, but does it when a wait times out. A peer that is gone makes the wait fail at once
        instead, and nothing is closed: then the next peer is tried.
        """
        for peer in peers:
            try:
                self.group.recv([torch.empty(1)], peer, 0).wait(timedelta(seconds=0.001))  # torch may have forgotten it
            except RuntimeError as error:
                if "Timed out" in str(error):
                    return
