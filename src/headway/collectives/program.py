"""One rank's part of a schedule, as steps in the order in which the rank executes them.

All receives are posted before the first step, so that no sender has to wait for a receiver to be ready. After that a
rank sends chunks as soon as they are complete, and takes what it has received only when something depends on it.
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
    """Wait until a transfer has been sent: its chunks are about to change, or the program ends."""

    placed: PlacedTransfer


@dataclass(frozen=True, slots=True)
class Take:
    """Wait for transfers of one round.

    A transfer that replaces chunks is alone, and has landed in their place. Transfers that are added to the same chunks
    are together, in order of rank, and have landed in memory of their own.
    """

    came: tuple[PlacedTransfer, ...]

    @property
    def transfer(self) -> Transfer:
        """The first transfer; all have the same chunks."""
        return self.came[0].transfer


Step = Send | Settle | Take


@dataclass(frozen=True)
class Program:
    """The receives and steps of a rank."""

    rank: int
    receives: tuple[PlacedTransfer, ...]
    steps: tuple[Step, ...]


@lru_cache(maxsize=4096)
def lower(schedule: Schedule, rank: int) -> Program:
    """Return the program of a rank."""
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
        """Send, after taking everything up to what this transfer's chunks depend on."""
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
    """Group the transfers that are added to the same chunks, in order of rank."""
    groups: dict[tuple[int, ...], list[PlacedTransfer]] = {}
    for placed in arriving:
        transfer = placed.transfer
        key = (transfer.start, transfer.stop) if transfer.reduce else (transfer.start, transfer.stop, placed.place)
        groups.setdefault(key, []).append(placed)
    return [Take(tuple(sorted(group, key=lambda placed: placed.transfer.src))) for group in groups.values()]


def _overlap(a: Transfer, b: Transfer) -> bool:
    return a.start < b.stop and b.start < a.stop
