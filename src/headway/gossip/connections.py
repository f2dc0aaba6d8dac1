"""The process groups of a rank's gossip, and what all ranks must agree on before it starts."""

from __future__ import annotations

import atexit
import zlib

import torch
import torch.distributed as dist
from torch import Tensor

from headway.collectives import Executor
from headway.collectives.groups import OwnGroups
from headway.gossip.inbox import MessageWire

_PATIENCE_S = 5.0
_BROADCAST = "scatter_gather"
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
        self._groups: list[OwnGroups] | None = [OwnGroups(group, timeout_s, cpu_only=True) for _ in range(2)]
        self.wire, self.note_wire = (MessageWire(each.cpu, self.rank, self.num_ranks) for each in self._groups)
        atexit.register(self._leave)

    def check_agreement(self, what: str, number: int) -> None:
        """Raise on all ranks if a number is not the same on all."""
        numbers = self.executor.all_gather(torch.tensor([number])).flatten().tolist()
        others = [rank for rank, theirs in enumerate(numbers) if theirs != numbers[0]]
        if others:
            raise ValueError(f"ranks {others} have another {what} than rank 0: give the same to all")

    def make_equal(self, tensors: list[Tensor]) -> None:
        """Copy the tensors of rank 0 to all ranks, and check that the same bits have arrived."""
        parts = [tensor.detach().cpu().contiguous().view(-1).view(torch.uint8) for tensor in tensors]
        whole = torch.cat(parts)
        self.executor.broadcast(whole, 0, _BROADCAST)
        with torch.no_grad():
            for tensor, part in zip(tensors, torch.split(whole, [part.numel() for part in parts]), strict=True):
                tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))
        self.check_agreement("initial model", zlib.crc32(whole.numpy().tobytes()))

    def check_open(self) -> None:
        """Raise if `close` has been called."""
        if self._groups is None:
            raise ValueError("this optimizer is closed: wrap the model again")

    def close(self, patience_s: float = _PATIENCE_S) -> None:
        """Wait, for a while, until all ranks are here; then end threads and connections."""
        groups, self._groups = self._groups, None
        if groups is None:
            return
        atexit.unregister(self._leave)
        groups[0].wait_for_all(patience_s)
        self.cut()
        self.executor.close()
        for each in groups:
            each.destroy()
        self._release()

    def cut(self) -> None:
        """Close the connections to all ranks at once, without waiting for them."""
        self.wire.cut()
        self.note_wire.cut()

    def _leave(self) -> None:
        """At the end of the process, let no thread wait in torch: it would not outlive the interpreter."""
        self._groups = None
        self.cut()
        self._release()
        self.executor.leave()

    def _release(self) -> None:
        self.wire.release(_PATIENCE_S)
        self.note_wire.release(_PATIENCE_S)
