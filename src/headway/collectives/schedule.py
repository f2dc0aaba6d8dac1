"""A collective as data: rounds of transfers, which can be verified, executed, costed and simulated."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property


class Collective(str, Enum):
    """The purpose of a schedule; the value is the name of the executor's method.

    A buffer is cut into chunks. In an all-reduce and a broadcast the chunks are equal parts of the payload; in an
    all-gather and a neighbour exchange chunk r is the whole message of rank r.
    """

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"
    NEIGHBOUR_EXCHANGE = "neighbour_exchange"

    @property
    def one_chunk_a_rank(self) -> bool:
        """Whether a chunk is one rank's message rather than a part of the payload."""
        return self in (Collective.ALL_GATHER, Collective.NEIGHBOUR_EXCHANGE)


@dataclass(frozen=True, slots=True)
class Transfer:
    """Chunks ``start`` to ``stop - 1`` go from rank ``src`` to rank ``dst``, to be added or to replace."""

    src: int
    dst: int
    start: int
    stop: int
    reduce: bool = False

    def __str__(self) -> str:
        chunks = f"chunk {self.start}" if self.stop == self.start + 1 else f"chunks {self.start}-{self.stop - 1}"
        return f"rank {self.src} {'adds' if self.reduce else 'copies'} {chunks} to rank {self.dst}"


Round = tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class PlacedTransfer:
    """A transfer, its place among all transfers of the schedule, and its round."""

    place: int
    round: int
    transfer: Transfer


@dataclass(frozen=True)
class Schedule:
    """Rounds of transfers. A transfer sends what its source holds after all earlier rounds.

    The contributions that reach a chunk within one round, and the rank's own, are added in ascending order of rank:
    that makes sums bitwise equal on all ranks, and `verify` proves it.

    Args:
        collective: The purpose of the schedule.
        algorithm: A name of `headway.collectives.ALGORITHMS`.
        num_ranks: Number of ranks, 0 to ``num_ranks - 1``.
        num_chunks: Number of chunks that the buffer is cut into.
        rounds: The transfers of each round.
        root: The rank a broadcast starts from.
        neighbours: For a neighbour exchange, the ranks whose messages each rank receives.
    """

    collective: Collective
    algorithm: str
    num_ranks: int
    num_chunks: int
    rounds: tuple[Round, ...]
    root: int = 0
    neighbours: tuple[tuple[int, ...], ...] | None = None

    def __str__(self) -> str:
        root = f" from rank {self.root}" if self.collective is Collective.BROADCAST else ""
        return f"{self.collective.value} by {self.algorithm}{root} over {self.num_ranks} ranks"

    def __hash__(self) -> int:
        """Hash what distinguishes schedules, not their thousands of transfers: they are keys of caches."""
        return hash((self.collective, self.algorithm, self.num_ranks, self.num_chunks, self.root, self.neighbours))

    @cached_property
    def fingerprint(self) -> int:
        """A 32-bit number that is the same in every process, and differs between kinds of schedule."""
        kind = (self.collective.value, self.algorithm, self.num_ranks, self.num_chunks, self.root, self.neighbours)
        return zlib.crc32(repr(kind).encode())

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """All transfers, in order of rounds."""
        return tuple(transfer for transfers in self.rounds for transfer in transfers)

    @cached_property
    def parts(self) -> tuple[tuple[PlacedTransfer, ...], ...]:
        """For each rank, the transfers that it sends or receives."""
        parts: list[list[PlacedTransfer]] = [[] for _ in range(self.num_ranks)]
        place = 0
        for number, transfers in enumerate(self.rounds):
            for transfer in transfers:
                placed = PlacedTransfer(place, number, transfer)
                parts[transfer.src].append(placed)
                parts[transfer.dst].append(placed)
                place += 1
        return tuple(map(tuple, parts))

    def placed_among(self, ranks: Sequence[int], num_ranks: int) -> Schedule:
        """Return the same schedule for some of more ranks: ``ranks[i]`` does what rank i does here, the others nothing.

        >>> schedule = make_schedule(Collective.ALL_REDUCE, "one", 2, 1, [[Transfer(0, 1, 0, 1)]])
        >>> schedule.placed_among((1, 4), 5).transfers
        (Transfer(src=1, dst=4, start=0, stop=1, reduce=False),)
        """
        if (
            len(ranks) != self.num_ranks
            or sorted(set(ranks)) != list(ranks)
            or not 0 <= ranks[0] <= ranks[-1] < num_ranks
        ):
            raise ValueError(
                f"ranks are {list(ranks)}, but must be {self.num_ranks} of 0 to {num_ranks - 1}, ascending"
            )
        rounds = [[replace(t, src=ranks[t.src], dst=ranks[t.dst]) for t in transfers] for transfers in self.rounds]
        algorithm = f"{self.algorithm} among {', '.join(map(str, ranks))}"
        return make_schedule(self.collective, algorithm, num_ranks, self.num_chunks, rounds, root=ranks[self.root])

    def bounds(self, numel: int) -> tuple[int, ...]:
        """Return where the chunks of a payload of ``numel`` entries begin, and where the last one ends.

        Parts differ by at most one entry; a message of an all-gather has ``numel`` entries.
        """
        if self.collective.one_chunk_a_rank:
            return tuple(numel * chunk for chunk in range(self.num_chunks + 1))
        return tuple(numel * chunk // self.num_chunks for chunk in range(self.num_chunks + 1))

    def landing(self, numel: int) -> int:
        """Return how many entries the busiest rank receives to add: they need memory apart from the buffer."""
        bounds, received = self.bounds(numel), [0] * self.num_ranks
        for transfer in self.transfers:
            if transfer.reduce:
                received[transfer.dst] += bounds[transfer.stop] - bounds[transfer.start]
        return max(received)

    def sent(self, rank: int, numel: int) -> int:
        """Return how many entries ``rank`` sends when the payload has ``numel`` entries."""
        bounds = self.bounds(numel)
        mine = (placed.transfer for placed in self.parts[rank] if placed.transfer.src == rank)
        return sum(bounds[transfer.stop] - bounds[transfer.start] for transfer in mine)


def make_schedule(
    collective: Collective,
    algorithm: str,
    num_ranks: int,
    num_chunks: int,
    rounds: Iterable[Iterable[Transfer]],
    *,
    root: int = 0,
    neighbours: tuple[tuple[int, ...], ...] | None = None,
) -> Schedule:
    """Return a schedule of the rounds that are not empty."""
    frozen = tuple(transfers for transfers in (tuple(transfers) for transfers in rounds) if transfers)
    return Schedule(collective, algorithm, num_ranks, num_chunks, frozen, root, neighbours)
