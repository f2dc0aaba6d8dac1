"""Building blocks of several algorithms. Each returns rounds over chunks numbered in its own way."""

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
    """Pass chunks around the ring until all ranks have all; rank r starts with chunk r + shift."""
    return [
        [_single(rank, (rank + 1) % num_ranks, (rank + shift - step) % num_ranks) for rank in range(num_ranks)]
        for step in range(num_ranks - 1)
    ]


def ring_reduce_scatter(num_ranks: int) -> Rounds:
    """Add chunks up around the ring; rank r ends with the sum of chunk r + 1."""
    return [
        [_single(rank, (rank + 1) % num_ranks, (rank - step) % num_ranks, reduce=True) for rank in range(num_ranks)]
        for step in range(num_ranks - 1)
    ]


def bruck_gather(num_ranks: int) -> Rounds:
    """Double what every rank has, each round from a rank twice as far away; for any number of ranks."""
    return [
        [
            Transfer(rank, (rank - stride) % num_ranks, start, stop)
            for rank in range(num_ranks)
            for start, stop in _wrapped(rank, min(stride, num_ranks - stride), num_ranks)
        ]
        for stride in strides(num_ranks)
    ]


def direct_gather(num_ranks: int) -> Rounds:
    """Rank r sends chunk r to all others in one round, the next rank first, so that no rank is first for all."""
    return [
        [
            _single(rank, (rank + distance) % num_ranks, rank)
            for distance in range(1, num_ranks)
            for rank in range(num_ranks)
        ]
    ]


def binomial_scatter(num_ranks: int) -> Rounds:
    """Scatter the chunks from rank 0 down a binomial tree, half of the remaining range at a time."""
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
    """Add everything up to rank 0, along the broadcast's tree reversed."""
    return [
        [Transfer(rank + stride, rank, 0, num_chunks, reduce=True) for rank in range(0, num_ranks - stride, 2 * stride)]
        for stride in strides(num_ranks)
    ]


@dataclass(frozen=True)
class Fold:
    """Pairs up ranks until a power of two of *leads* is left, for the algorithms that need one.

    Each of the first ``num_extra`` pairs of neighbouring ranks has one lead, the even rank; all further ranks are
    leads. So consecutive leads stand for consecutive ranks.
    """

    num_ranks: int

    @property
    def num_leads(self) -> int:
        """The largest power of two that is not above the number of ranks."""
        return 1 << (self.num_ranks.bit_length() - 1)

    @property
    def num_extra(self) -> int:
        """The number of ranks that are not leads."""
        return self.num_ranks - self.num_leads

    def rank(self, lead: int) -> int:
        """Return the rank of a lead; of the lead after the last, the number of ranks."""
        return lead + min(lead, self.num_extra)

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield (lead, the rank paired with it)."""
        for lead in range(self.num_extra):
            yield 2 * lead, 2 * lead + 1

    def into_leads(self, num_chunks: int) -> Rounds:
        """Add what the others hold to their leads."""
        return [[Transfer(extra, lead, 0, num_chunks, reduce=True) for lead, extra in self.pairs()]]

    def out_of_leads(self, num_chunks: int) -> Rounds:
        """Copy what leads hold to the others."""
        return [[Transfer(lead, extra, 0, num_chunks) for lead, extra in self.pairs()]]


def relabel(rounds: Rounds, num_ranks: int, root: int) -> Rounds:
    """Rotate the ranks so that rank 0 becomes ``root``; the chunks stay."""
    return [
        [Transfer((t.src + root) % num_ranks, (t.dst + root) % num_ranks, t.start, t.stop, t.reduce) for t in transfers]
        for transfers in rounds
    ]


def _single(src: int, dst: int, chunk: int, *, reduce: bool = False) -> Transfer:
    return Transfer(src, dst, chunk, chunk + 1, reduce)


def _wrapped(start: int, count: int, num_chunks: int) -> list[tuple[int, int]]:
    """Split a run of chunks that goes past the last one."""
    stop = start + count
    return [(start, stop)] if stop <= num_chunks else [(start, num_chunks), (0, stop - num_chunks)]
