"""Patterns that several algorithms are made of. Each returns rounds over chunks of its own numbering."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headway.collectives.schedule import Transfer

Rounds = list[list[Transfer]]


def strides(num_ranks: int) -> list[int]:
    """Return 1, 2, 4, ... below the number of ranks.

    >>> strides(6)
    [1, 2, 4]
    """
    return [1 << bit for bit in range((num_ranks - 1).bit_length())]


def ring_gather(num_ranks: int, *, shift: int = 0) -> Rounds:
    """Pass chunks round the ring until everybody has all; rank r starts with chunk r + shift."""
    return [
        [_single(rank, (rank + 1) % num_ranks, (rank + shift - step) % num_ranks) for rank in range(num_ranks)]
        for step in range(num_ranks - 1)
    ]


def ring_reduce_scatter(num_ranks: int) -> Rounds:
    """Add chunks up round the ring; rank r ends with the sum of chunk r + 1."""
    return [
        [_single(rank, (rank + 1) % num_ranks, (rank - step) % num_ranks, reduce=True) for rank in range(num_ranks)]
        for step in range(num_ranks - 1)
    ]


def bruck_gather(num_ranks: int) -> Rounds:
    """Double what every rank has, each round from a rank twice as far; any number of ranks."""
    return [
        [
            Transfer(rank, (rank - stride) % num_ranks, start, stop)
            for rank in range(num_ranks)
            for start, stop in _wrapped(rank, min(stride, num_ranks - stride), num_ranks)
        ]
        for stride in strides(num_ranks)
    ]


def everyone_gather(num_ranks: int) -> Rounds:
    """Rank r sends chunk r to everybody, in one round, to the next rank first so that no one is everyone's first."""
    return [
        [
            _single(rank, (rank + distance) % num_ranks, rank)
            for distance in range(1, num_ranks)
            for rank in range(num_ranks)
        ]
    ]


def binomial_scatter(num_ranks: int) -> Rounds:
    """Halve a range of chunks on and on, from rank 0 to where each belongs."""
    return [
        [
            Transfer(rank, rank + stride, rank + stride, min(rank + 2 * stride, num_ranks))
            for rank in range(0, num_ranks - stride, 2 * stride)
        ]
        for stride in reversed(strides(num_ranks))
    ]


def binomial_broadcast(num_ranks: int, num_chunks: int) -> Rounds:
    """Send everything from rank 0 down a binomial tree."""
    return [
        [Transfer(rank, rank + stride, 0, num_chunks) for rank in range(0, num_ranks - stride, 2 * stride)]
        for stride in reversed(strides(num_ranks))
    ]


def binomial_reduce(num_ranks: int, num_chunks: int) -> Rounds:
    """Add everything up to rank 0, the broadcast's tree upside down."""
    return [
        [Transfer(rank + stride, rank, 0, num_chunks, reduce=True) for rank in range(0, num_ranks - stride, 2 * stride)]
        for stride in strides(num_ranks)
    ]


@dataclass(frozen=True)
class Fold:
    """Ranks paired up until a power of two of *leads* is left, for the algorithms that need one.

    The first ``num_extra`` pairs of neighbouring ranks have one lead each, the even rank; the others lead alone. So the
    ranks behind any run of leads are a run of ranks.
    """

    num_ranks: int

    @property
    def num_leads(self) -> int:
        """The largest power of two that is not above the number of ranks."""
        return 1 << (self.num_ranks.bit_length() - 1)

    @property
    def num_extra(self) -> int:
        """How many ranks are no leads."""
        return self.num_ranks - self.num_leads

    def rank(self, lead: int) -> int:
        """Return the rank of a lead; of the lead after the last, the number of ranks."""
        return lead + min(lead, self.num_extra)

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield (lead, the rank behind it)."""
        for lead in range(self.num_extra):
            yield 2 * lead, 2 * lead + 1

    def into_leads(self, num_chunks: int) -> Rounds:
        """Add what the others hold to their leads."""
        return [[Transfer(extra, lead, 0, num_chunks, reduce=True) for lead, extra in self.pairs()]]

    def out_of_leads(self, num_chunks: int) -> Rounds:
        """Give the others what their leads hold."""
        return [[Transfer(lead, extra, 0, num_chunks) for lead, extra in self.pairs()]]


def relabel(rounds: Rounds, num_ranks: int, root: int) -> Rounds:
    """Turn the ranks so that rank 0 becomes ``root``; the chunks stay."""
    return [
        [Transfer((t.src + root) % num_ranks, (t.dst + root) % num_ranks, t.start, t.stop, t.reduce) for t in transfers]
        for transfers in rounds
    ]


def _single(src: int, dst: int, chunk: int, *, reduce: bool = False) -> Transfer:
    return Transfer(src, dst, chunk, chunk + 1, reduce)


def _wrapped(start: int, count: int, num_chunks: int) -> list[tuple[int, int]]:
    """Cut a run of chunks that goes past the last one."""
    stop = start + count
    return [(start, stop)] if stop <= num_chunks else [(start, num_chunks), (0, stop - num_chunks)]
