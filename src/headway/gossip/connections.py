"""Process groups, threads and checks that a rank's gossip needs of the others."""

from __future__ import annotations

import atexit
import threading
import zlib

import torch
import torch.distributed as dist
from torch import Tensor

from headway.collectives import Executor
from headway.collectives.groups import OwnGroups
from headway.collectives.wire import Wire
from headway.gossip.edge import WAITING
from headway.gossip.events import Journal
from headway.gossip.everyone import Everyone, Neighbours
from headway.gossip.roll_call import RollCall

_PARTING_S = 5.0
_BROADCAST = "scatter_gather"
_LATE = 3
"""So many times the deadline for what all ranks do together: some may first have had to give somebody up."""


class Connections:
    """Process groups: for messages between neighbours, for small words beside them, and for what concerns all ranks.

    A word on the connection of a message would wait until all of that has gone.

    Args:
        group: Whose ranks take part.
        timeout_s: How long to wait for a rank.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout_s: float) -> None:
        self._executor = Executor(group, timeout_s=_LATE * timeout_s, debug=False, scratch_bytes=0, cpu_only=True)
        self.rank, self.num_ranks = self._executor.rank, self._executor.num_ranks
        self._groups: list[OwnGroups] | None = [OwnGroups(group, timeout_s, cpu_only=True) for _ in range(2)]
        self.wire, self.word_wire = (Wire(each.cpu) for each in self._groups)
        self._timeout_s = timeout_s
        atexit.register(self._leave)

    def meet(self, neighbours: Neighbours, journal: Journal) -> None:
        """Make ready for averages over all that are alive."""
        roll_call = RollCall(self.word_wire, self.rank, self.num_ranks, _LATE * self._timeout_s)
        self.everyone = Everyone(self._executor, roll_call, neighbours, journal)

    def check_agreement(self, what: str, number: int) -> None:
        """Raise on all ranks if a number is not the same on all."""
        everyone = self._executor.all_gather(torch.tensor([number])).flatten().tolist()
        odd = [rank for rank, theirs in enumerate(everyone) if theirs != everyone[0]]
        if odd:
            raise ValueError(f"ranks {odd} have another {what} than rank 0: give the same to all")

    def make_equal(self, tensors: list[Tensor]) -> None:
        """Give all ranks the tensors of rank 0, and check that they have arrived as they are there."""
        parts = [tensor.detach().cpu().contiguous().view(-1).view(torch.uint8) for tensor in tensors]
        together = torch.cat(parts)
        self._executor.broadcast(together, 0, _BROADCAST)
        with torch.no_grad():
            for tensor, part in zip(tensors, torch.split(together, [part.numel() for part in parts]), strict=True):
                tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))
        self.check_agreement("initial model", zlib.crc32(together.numpy().tobytes()))

    def check_that_all_fit(self, reason: str | None, step: int) -> None:
        """Raise on all ranks if any of them has a reason why not, or a state of another step."""
        alive = self.everyone.who_is_there()
        if len(alive) < self.num_ranks:
            lost = sorted(set(range(self.num_ranks)) - set(alive))
            raise ValueError(f"ranks {lost} are lost, and a state is for all: start anew")
        fits, steps = self._executor.all_gather(torch.tensor([reason is None, step])).T.tolist()
        if reason is None and not all(fits):
            reason = f"the state of rank {fits.index(False)} does not fit"
        odd = [rank for rank, theirs in enumerate(steps) if theirs != steps[0]]
        if reason is None and odd:
            reason = (
                f"the states of ranks {odd} are not of step {steps[0]}, as that of rank 0 is: load those of one step"
            )
        if reason is not None:
            raise ValueError(reason)

    def check_open(self) -> None:
        """Raise if it is all over."""
        if self._groups is None:
            raise ValueError("this optimizer is closed: wrap the model anew")

    def close(self, patience_s: float = _PARTING_S) -> None:
        """Wait, for a while, until all ranks are here; then end threads and connections."""
        groups, self._groups = self._groups, None
        if groups is None:
            return
        atexit.unregister(self._leave)
        groups[0].part(patience_s)
        self._cut()
        self._executor.close()
        for each in groups:
            each.destroy()
        self._release()

    def _leave(self) -> None:
        """At the end of the process: let no thread wait in torch, which would not outlive the interpreter."""
        self._cut()
        for thread in threading.enumerate():
            if thread.name.startswith(WAITING):
                thread.join(_PARTING_S)
        self._executor.forsake()
        self._groups = None
        self._release()

    def _release(self) -> None:
        self.wire.release()
        self.word_wire.release()

    def _cut(self) -> None:
        for wire in (self.wire, self.word_wire):
            wire.close(peer for peer in range(self.num_ranks) if peer != self.rank)
