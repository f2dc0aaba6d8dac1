"""Proves schedules correct without a socket, by running every rank's program on symbols.

The symbol of a chunk says which ranks' contributions it holds and in which order they were added, so that equal symbols
mean bitwise equal sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.collectives.program import Program, Send, Step, Take, lower
from headway.collectives.schedule import Collective, PlacedTransfer, Schedule, Transfer


class ScheduleError(ValueError):
    """A schedule is wrong at ``rank``, in ``round`` (None: at the end), for ``chunk``."""

    def __init__(self, reason: str, *, rank: int, round: int | None, chunk: int) -> None:
        self.reason, self.rank, self.round, self.chunk = reason, rank, round, chunk
        when = "at the end" if round is None else f"in round {round}"
        super().__init__(f"rank {rank}, {when}, chunk {chunk}: {reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.reason, self.rank, self.round, self.chunk)


def _rebuild(reason: str, rank: int, round: int | None, chunk: int) -> ScheduleError:
    return ScheduleError(reason, rank=rank, round=round, chunk=chunk)


class _Clocks:
    """Vector clocks: for each rank, how many steps of every rank have certainly happened before."""

    def __init__(self, num_ranks: int) -> None:
        self.now = np.zeros((num_ranks, num_ranks), dtype=np.int32)
        self.of_send: dict[int, npt.NDArray[np.int32]] = {}

    def step(self, rank: int) -> None:
        self.now[rank, rank] += 1

    def send(self, rank: int, place: int) -> None:
        self.of_send[place] = self.now[rank].copy()

    def receive(self, rank: int, place: int) -> None:
        np.maximum(self.now[rank], self.of_send[place], out=self.now[rank])


@dataclass(frozen=True)
class Symbol:
    """The content of a chunk: one bit per contributing rank, and the number of the expression that adds them."""

    ranks: int
    expression: int


Cell = Symbol | None
"""None: the chunk is empty."""


def verify(schedule: Schedule, programs: Sequence[Program] | None = None) -> None:
    """Check that a schedule does what its collective promises, or raise `ScheduleError` with rank, round and chunk.

    It finds transfers between ranks or of chunks that do not exist, a rank that sends what it does not have yet,
    contributions added twice or lost, a chunk written twice in one round or while it is being sent, deadlocks (a send
    blocks until the receive is posted), missing contributions at the end, and sums that ranks add in different orders.

    Args:
        schedule: The schedule to check.
        programs: The programs of the ranks, if they are not those that `lower` makes of the schedule.
    """
    _check_transfers(schedule)
    run = _Run(schedule, list(programs or [lower(schedule, rank) for rank in range(schedule.num_ranks)]))
    run.run()
    run.check_result()


def _check_transfers(schedule: Schedule) -> None:
    for number, transfers in enumerate(schedule.rounds):
        written: dict[tuple[int, int], Transfer] = {}
        for transfer in transfers:
            _check_transfer(schedule, number, transfer)
            for chunk in range(transfer.start, transfer.stop):
                other = written.setdefault((transfer.dst, chunk), transfer)
                alike = (other.start, other.stop, other.reduce) == (transfer.start, transfer.stop, transfer.reduce)
                if other is not transfer and not (alike and transfer.reduce):
                    reason = f"{transfer}, but in the same round {other}"
                    raise ScheduleError(reason, rank=transfer.dst, round=number, chunk=chunk)


def _check_transfer(schedule: Schedule, number: int, transfer: Transfer) -> None:
    for rank in (transfer.src, transfer.dst):
        if not 0 <= rank < schedule.num_ranks:
            reason = f"{transfer}, but ranks go from 0 to {schedule.num_ranks - 1}"
            raise ScheduleError(reason, rank=rank, round=number, chunk=transfer.start)
    if transfer.src == transfer.dst:
        raise ScheduleError(f"{transfer}, to itself", rank=transfer.src, round=number, chunk=transfer.start)
    if not 0 <= transfer.start < transfer.stop <= schedule.num_chunks:
        reason = f"{transfer}, but chunks go from 0 to {schedule.num_chunks - 1}"
        raise ScheduleError(reason, rank=transfer.src, round=number, chunk=transfer.start)


@dataclass
class _Run:
    """Runs all programs side by side, each as far as it gets."""

    schedule: Schedule
    programs: list[Program]
    cells: list[list[Cell]] = field(init=False)
    next_step: list[int] = field(init=False)
    under_way: dict[int, list[Symbol]] = field(default_factory=dict)
    expressions: dict[tuple[int, ...], int] = field(default_factory=dict)
    posted: set[int] = field(init=False)
    clocks: _Clocks = field(init=False)
    unsettled: list[dict[int, PlacedTransfer]] = field(init=False)
    """For each rank, the sends that have not been settled."""
    taken_at: dict[int, int] = field(default_factory=dict)
    """For each place, the step at which the target took the transfer."""

    def __post_init__(self) -> None:
        ranks, chunks = range(self.schedule.num_ranks), range(self.schedule.num_chunks)
        self.cells = [[self._held_at_start(rank, chunk) for chunk in chunks] for rank in ranks]
        self.next_step = [0] * self.schedule.num_ranks
        self.clocks = _Clocks(self.schedule.num_ranks)
        self.unsettled = [{} for _ in ranks]
        self.posted = {placed.place for program in self.programs for placed in program.receives}

    def _held_at_start(self, rank: int, chunk: int) -> Cell:
        collective = self.schedule.collective
        has = (
            collective is Collective.ALL_REDUCE
            or (collective is Collective.BROADCAST and rank == self.schedule.root)
            or (collective.one_chunk_a_rank and rank == chunk)
        )
        return Symbol(1 << rank, self._expression((rank,))) if has else None

    def _expression(self, parts: tuple[int, ...]) -> int:
        return self.expressions.setdefault(parts, len(self.expressions) + self.schedule.num_ranks)

    def run(self) -> None:
        waiting = set(range(self.schedule.num_ranks))
        while waiting:
            moved = {rank for rank in waiting if self._advance(rank)}
            waiting = {rank for rank in waiting if self.next_step[rank] < len(self.programs[rank].steps)}
            if waiting and not moved:
                self._raise_deadlock(min(waiting))

    def _advance(self, rank: int) -> bool:
        """Execute as many steps as possible; return whether there was one."""
        steps, start = self.programs[rank].steps, self.next_step[rank]
        while self.next_step[rank] < len(steps) and self._step(rank, steps[self.next_step[rank]]):
            self.next_step[rank] += 1
            self.clocks.step(rank)
        return self.next_step[rank] > start

    def _step(self, rank: int, step: Step) -> bool:
        """Execute a step, unless it has to wait; return whether it was executed."""
        if isinstance(step, Send):
            return self._send(rank, step.placed)
        if isinstance(step, Take):
            return self._take(rank, step)
        return self.unsettled[rank].pop(step.placed.place, None) is not None

    def _send(self, rank: int, placed: PlacedTransfer) -> bool:
        if placed.place not in self.posted:
            return False
        content = []
        for chunk in range(placed.transfer.start, placed.transfer.stop):
            cell = self.cells[rank][chunk]
            if cell is None:
                raise ScheduleError("sends what it does not have yet", rank=rank, round=placed.round, chunk=chunk)
            content.append(cell)
        self.under_way[placed.place] = content
        self.unsettled[rank][placed.place] = placed
        self.clocks.send(rank, placed.place)
        return True

    def _take(self, rank: int, take: Take) -> bool:
        if not all(placed.place in self.under_way for placed in take.came):
            return False
        self._check_sends_in_flight(rank, take)
        for placed in take.came:
            self.clocks.receive(rank, placed.place)
            self.taken_at[placed.place] = self.next_step[rank]
        combine = self._sum if take.transfer.reduce else self._copy
        for offset, chunk in enumerate(range(take.transfer.start, take.transfer.stop)):
            symbols = [self.under_way[placed.place][offset] for placed in take.came]
            self.cells[rank][chunk] = combine(rank, chunk, take.came, symbols)
        return True

    def _check_sends_in_flight(self, rank: int, take: Take) -> None:
        """Check that no chunk changes while it is being sent.

        A sum is written at this step. A copy lands when it arrives, which is safe if the receiver of the send took it
        before the copy was sent.
        """
        written = take.transfer
        first, stop = written.start, written.stop
        for sent in self.unsettled[rank].values():
            read = sent.transfer
            if read.stop <= first or stop <= read.start:
                continue
            taken_at = self.taken_at.get(sent.place)
            known = self.clocks.of_send[take.came[0].place][read.dst]
            if written.reduce or taken_at is None or known <= taken_at:
                reason = f"changes while it is still being sent ({read})"
                raise ScheduleError(reason, rank=rank, round=take.came[0].round, chunk=max(read.start, first))

    def _copy(self, rank: int, chunk: int, came: tuple[PlacedTransfer, ...], symbols: list[Symbol]) -> Symbol:
        own, symbol = self.cells[rank][chunk], symbols[0]
        if own is not None and own.ranks & ~symbol.ranks:
            lost = _ranks(own.ranks & ~symbol.ranks)
            reason = f"a copy from rank {came[0].transfer.src} loses the contribution of {lost}"
            raise ScheduleError(reason, rank=rank, round=came[0].round, chunk=chunk)
        return symbol

    def _sum(self, rank: int, chunk: int, came: tuple[PlacedTransfer, ...], symbols: list[Symbol]) -> Symbol:
        own, number = self.cells[rank][chunk], came[0].round
        if own is None:
            raise ScheduleError("adds to what it does not have", rank=rank, round=number, chunk=chunk)
        sources = [placed.transfer.src for placed in came]
        parts = sorted([(rank, own), *zip(sources, symbols, strict=True)], key=lambda part: part[0])
        ranks, expression = parts[0][1].ranks, parts[0][1].expression
        for src, symbol in parts[1:]:
            if ranks & symbol.ranks:
                reason = (
                    f"the contribution of {_ranks(ranks & symbol.ranks)} is added twice, with what rank {src} holds"
                )
                raise ScheduleError(reason, rank=rank, round=number, chunk=chunk)
            ranks, expression = ranks | symbol.ranks, self._expression((expression, symbol.expression))
        return Symbol(ranks, expression)

    def _raise_deadlock(self, rank: int) -> None:
        step = self.programs[rank].steps[self.next_step[rank]]
        placed = step.came[0] if isinstance(step, Take) else step.placed
        what = "no rank receives it" if isinstance(step, Send) else f"rank {placed.transfer.src} never gets to send it"
        reason = f"deadlock: {placed.transfer}, but {what}"
        raise ScheduleError(reason, rank=rank, round=placed.round, chunk=placed.transfer.start)

    def check_result(self) -> None:
        for rank, unsettled in enumerate(self.unsettled):
            for sent in unsettled.values():
                reason = f"is still being sent when the program ends ({sent.transfer})"
                raise ScheduleError(reason, rank=rank, round=None, chunk=sent.transfer.start)
        for chunk in range(self.schedule.num_chunks):
            reference: Cell = None
            for rank in range(self.schedule.num_ranks):
                cell, required = self.cells[rank][chunk], self._required(rank, chunk)
                held = 0 if cell is None else cell.ranks
                if required & ~held:
                    reason = f"lacks the contribution of {_ranks(required & ~held)}"
                    raise ScheduleError(reason, rank=rank, round=None, chunk=chunk)
                if required and reference is not None and cell != reference:
                    reason = "adds up in a different order than a lower rank: the sums may differ in their last bits"
                    raise ScheduleError(reason, rank=rank, round=None, chunk=chunk)
                reference = cell if required else reference

    def _required(self, rank: int, chunk: int) -> int:
        """Return the ranks, as bits, whose contributions a rank's chunk must hold at the end."""
        match self.schedule.collective:
            case Collective.ALL_REDUCE:
                return (1 << self.schedule.num_ranks) - 1
            case Collective.BROADCAST:
                return 1 << self.schedule.root
            case Collective.ALL_GATHER:
                return 1 << chunk
        assert self.schedule.neighbours is not None
        return 1 << chunk if chunk == rank or chunk in self.schedule.neighbours[rank] else 0


def _ranks(bits: int) -> str:
    ranks = [rank for rank in range(bits.bit_length()) if bits >> rank & 1]
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
