"""The process groups of a rank's gossip."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch.distributed as dist

from headway.collectives import Executor
from headway.collectives.ends import CLOSING_S, CUTTING_S, register, unregister
from headway.collectives.groups import OwnGroups, wait_for
from headway.collectives.members import Members
from headway.gossip.inbox import MessageWire

_LATE = 3
"""Timeouts to wait for what all ranks do together: some may first have to give up a lost neighbour."""


class Connections:
    """Process groups for messages between neighbours, for notes, and for what all ranks do together.

    Notes, such as heartbeats, have a group of their own: on the connection of a message they would queue behind it.

    Args:
        group: Ranks that take part; all by default.
        timeout_s: How long to wait for a rank.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout_s: float) -> None:
        self.all_ranks_timeout_s = _LATE * timeout_s
        self.executor = Executor(group, timeout_s=self.all_ranks_timeout_s, debug=False, scratch_bytes=0, cpu_only=True)
        self.rank, self.num_ranks = self.executor.rank, self.executor.num_ranks
        members = Members.of(group)
        self._groups: list[OwnGroups] | None = [
            OwnGroups(members, self.all_ranks_timeout_s, cpu_only=True) for _ in range(2)
        ]
        self.wire, self.note_wire = (MessageWire(each.cpu, self.rank, self.num_ranks) for each in self._groups)
        register(self)

    def check_open(self) -> None:
        """Raise if `close` has been called."""
        if self._groups is None:
            raise ValueError("this optimizer is closed: wrap the model again")

    def close(self, patience_s: float = CLOSING_S) -> None:
        """Wait, for a while, until all ranks are here; then end threads and connections."""
        if self._groups is not None:
            deadline = time.monotonic() + patience_s
            wait_for(self._groups[0].start_barrier(), deadline)
            self._release(deadline)
            self.executor.close(deadline=deadline)

    def cut(self) -> None:
        """Close the connections to all ranks at once, without waiting for them."""
        self.wire.cut()
        self.note_wire.cut()

    def start_leaving(self, deadline: float, *, has_failed: bool) -> Callable[[], None]:
        """At the end of the process, let all ranks come to it; return a function that ends threads and connections."""
        barrier = None if self._groups is None or has_failed else self._groups[0].start_barrier()

        def finish() -> None:
            wait_for(barrier, deadline)
            self._release(deadline)

        return finish

    def _release(self, deadline: float) -> None:
        """Close everything, and wait for the threads that have been waiting; a second call does nothing.

        The deadline is that until which other ranks were waited for.
        """
        groups, self._groups = self._groups, None
        if groups is None:
            return
        unregister(self)
        self.cut()
        self.wire.release(deadline + CUTTING_S)
        self.note_wire.release(deadline + CUTTING_S)
        for each in groups:
            each.release()
