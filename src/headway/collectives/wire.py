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

from headway.collectives.groups import GRACE_S

FOREVER_S = 1e8


class BrokenWire(RuntimeError):
    """A wait failed: the connection to ``peer`` (None if unknown) is gone, or the deadline has passed."""

    def __init__(self, peer: int | None, *, timed_out: bool, cause: str) -> None:
        self.peer = peer
        self.timed_out = timed_out
        super().__init__(cause)


_NETWORK_TROUBLE = re.compile(
    "connection|timed out|timeout|broken pipe|socket|unreachable|pair closure|gloo", re.IGNORECASE
)


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
def _naming(peer: int, deadline: float) -> Iterator[None]:
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
    """Sends and receives bytes; errors name the peer.

    Args:
        group: Carries the messages.
        patience_s: How long to wait for one message. It is long: a peer that is gone is noticed in other ways.
    """

    def __init__(self, group: dist.ProcessGroup, patience_s: float) -> None:
        self._group: dist.ProcessGroup | None = group
        self.patience_s = patience_s
        self.waiting_since = 0.0
        """When the last wait began (`time.monotonic`): everything before it has arrived."""

    @staticmethod
    def as_bytes(tensor: Tensor) -> Tensor:
        """Return the same memory as bytes, since Gloo does not know all types."""
        return tensor.view(torch.uint8)

    def send(self, payload: Tensor, peer: int, tag: int) -> Pending:
        """Start sending bytes."""
        with _naming(peer, math.inf):
            return Pending(self._open(peer).send([payload], peer, tag), peer, payload)

    def receive(self, target: Tensor, peer: int, tag: int) -> Pending:
        """Start receiving into a tensor."""
        target = self.as_bytes(target)
        with _naming(peer, math.inf):
            return Pending(self._open(peer).recv([target], peer, tag), peer, target)

    def wait(self, pending: Pending) -> None:
        """Wait until it is complete, but not much longer than the patience.

        Gloo closes all connections of the group when a wait times out: the grace period is for exchanging notices.
        """
        self.waiting_since = now = time.monotonic()
        with _naming(pending.peer, now + self.patience_s):
            pending.work.wait(timedelta(seconds=self.patience_s + GRACE_S))

    def release(self) -> None:
        """Drop the group for good: one that outlives the interpreter makes torch abort. Later calls find it broken."""
        self._group = None

    def close(self, peers: Iterable[int]) -> None:
        """Close every connection of the group, so that no thread waits in it any more, here or on other ranks.

        Gloo has no call for it, but does it when a wait times out. A peer that is gone makes the wait fail at once
        instead, and nothing is closed: then the next peer is tried.
        """
        for peer in peers if self._group is not None else ():
            try:
                self._open(peer).recv([torch.empty(1)], peer, 0).wait(timedelta(seconds=0.001))
            except RuntimeError as error:
                if "Timed out" in str(error):
                    return

    def _open(self, peer: int) -> dist.ProcessGroup:
        group = self._group
        if group is None:
            raise BrokenWire(peer, timed_out=False, cause="this rank has closed its connections")
        return group
