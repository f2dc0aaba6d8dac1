"""What needs all ranks: averages over those that are alive."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from headway.collectives import Executor
from headway.errors import PeerLost
from headway.gossip.events import Journal
from headway.gossip.roll_call import RollCall
from headway.gossip.topology import components

Neighbours = Callable[[], tuple[tuple[int, ...], tuple[int, ...]]]
"""Returns those that are left, and those that are lost."""

_ALGORITHM = "halving_doubling"


class Everyone:
    """Averages over all ranks that are alive, after a roll call.

    Args:
        executor: For sums.
        roll_call: Finds who is there.
        neighbours: Returns the neighbours of this rank that are left, and those that are lost.
        journal: Where it is told who is missing.
    """

    def __init__(self, executor: Executor, roll_call: RollCall, neighbours: Neighbours, journal: Journal) -> None:
        self._executor = executor
        self._roll_call = roll_call
        self._neighbours = neighbours
        self._journal = journal
        self._alive = tuple(range(executor.num_ranks))

    def average(self, tensor: Tensor) -> Tensor:
        """Return the mean of a float32 tensor, the same on all ranks that are alive; all of them get it, or none.

        **Cost**: two roll calls and an all-reduce by halving and doubling: 8 α + 2 log N α + 2 M β.

        Raises:
            PeerLost: A rank was lost meanwhile. Gossip goes on, but there are no more averages.
        """
        alive = self.who_is_there()
        lost: PeerLost | None = None
        try:
            mean = self._mean(tensor, alive)
        except PeerLost as error:
            lost = error
        done = self._roll_call.hold(() if lost else (self._executor.rank,), self._neighbours()[1])
        unlucky = [rank for rank in alive if rank not in done.get(rank, ())]
        if unlucky:
            raise lost or PeerLost(unlucky, "an average")
        return mean

    def distance(self, x: Tensor) -> float:
        """Return the root mean square distance of models from their mean, √(Σ_i |x_i - x̄|² / N).

        **Cost**: that of an average, and another of one number.
        """
        off = (x - self.average(x)).double().square().sum()
        return math.sqrt(float(self.average(off.view(1).float())))

    def who_is_there(self) -> tuple[int, ...]:
        """Return the ranks that are alive; note who is not, and whether those who are fall apart."""
        joined = self._roll_call.hold(*self._neighbours())
        missing = sorted(set(self._alive) - set(joined))
        self._alive = tuple(joined)
        if missing:
            places = {rank: place for place, rank in enumerate(joined)}
            parts = components([[places[peer] for peer in peers if peer in places] for peers in joined.values()])
            self._journal.note_missing(missing, [[self._alive[place] for place in sorted(part)] for part in parts])
        return self._alive

    def _mean(self, tensor: Tensor, alive: tuple[int, ...]) -> Tensor:
        on_cpu = tensor.detach().to("cpu", copy=True)
        if len(alive) > 1 and on_cpu.numel():
            self._executor.all_reduce(on_cpu, _ALGORITHM, among=alive).div_(len(alive))
        return on_cpu.to(tensor.device)
