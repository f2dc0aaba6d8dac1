"""One rank's part of a schedule, as steps in the order in which it takes them.

All receives are posted before the first step, so that no sender ever waits for a notice that it may send. From then
on a rank sends as soon as what it sends is complete, and takes what has come in only when something depends on it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby

from headway.collectives.schedule import PlacedTransfer, Schedule, Transfer


@dataclass(frozen=True, slots=True)
class Send:
    """Send a transfer."""

    placed: PlacedTransfer


@dataclass(frozen=True, slots=True)
class Settle:
    """Wait until a transfer has left: its chunks are about to change, or the program ends."""

    placed: PlacedTransfer


@dataclass(frozen=True, slots=True)
class Take:
    """Wait for transfers of one round.

    What replaces chunks comes alone, and has landed in their place. What is added to the same chunks comes together, in
    order of rank, and has landed beside them.
    """

    came: tuple[PlacedTransfer, ...]

    @property
    def transfer(self) -> Transfer:
        """The first of them; all have the same chunks."""
        return self.came[0].transfer


Step = Send | Settle | Take


@dataclass(frozen=True)
class Program:
    """What a rank does."""

    rank: int
    receives: tuple[PlacedTransfer, ...]
    steps: tuple[Step, ...]


@lru_cache(maxsize=4096)
def lower(schedule: Schedule, rank: int) -> Program:
    """Return a rank's part of a schedule."""
    return _Lowering(rank).run(schedule.parts[rank])


@dataclass
class _Lowering:
    rank: int
    receives: list[PlacedTransfer] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    pending: deque[Take] = field(default_factory=deque)
    in_flight: list[PlacedTransfer] = field(default_factory=list)

    def run(self, part: tuple[PlacedTransfer, ...]) -> Program:
        for _, of_round in groupby(part, key=lambda placed: placed.round):
            arriving = []
            for placed in of_round:
                if placed.transfer.src == self.rank:
                    self._send(placed)
                else:
                    arriving.append(placed)
            self.receives += arriving
            self.pending += _grouped(arriving)
        while self.pending:
            self._take_first()
        self.steps += [Settle(placed) for placed in self.in_flight]
        return Program(self.rank, tuple(self.receives), tuple(self.steps))

    def _send(self, placed: PlacedTransfer) -> None:
        """Send, after taking all that this transfer's chunks depend on, and what came before that."""
        while any(_overlap(placed.transfer, take.transfer) for take in self.pending):
            self._take_first()
        self.steps.append(Send(placed))
        self.in_flight.append(placed)

    def _take_first(self) -> None:
        take = self.pending.popleft()
        if take.transfer.reduce:
            touched = [placed for placed in self.in_flight if _overlap(placed.transfer, take.transfer)]
            self.steps += [Settle(placed) for placed in touched]
            self.in_flight = [placed for placed in self.in_flight if placed not in touched]
        self.steps.append(take)


def _grouped(arriving: list[PlacedTransfer]) -> list[Take]:
    """Put together what is added to the same chunks, by order of rank."""
    groups: dict[tuple[int, ...], list[PlacedTransfer]] = {}
    for placed in arriving:
        transfer = placed.transfer
        key = (transfer.start, transfer.stop) if transfer.reduce else (transfer.start, transfer.stop, placed.place)
        groups.setdefault(key, []).append(placed)
    return [Take(tuple(sorted(group, key=lambda placed: placed.transfer.src))) for group in groups.values()]


def _overlap(a: Transfer, b: Transfer) -> bool:
    return a.start < b.stop and b.start < a.stop
