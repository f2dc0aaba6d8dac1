"""Who is joined to whom: the named graphs, for any number of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

Neighbours = tuple[tuple[int, ...], ...]
"""For each rank, those it is joined to, ascending."""


def ring(num_ranks: int) -> Neighbours:
    """Join each rank to the two beside it.

    >>> ring(4)
    ((1, 3), (0, 2), (1, 3), (0, 2))
    """
    return _shifted(num_ranks, (1,))


def torus(num_ranks: int) -> Neighbours:
    """Join each rank to the four beside it in the squarest grid that holds all; a prime number of ranks is a ring.

    >>> torus(6)[0]
    (1, 2, 3)
    """
    num_rows = max(n for n in range(1, math.isqrt(num_ranks) + 1) if num_ranks % n == 0)
    num_columns = num_ranks // num_rows

    def beside(rank: int) -> set[int]:
        row, column = divmod(rank, num_columns)
        across = {row * num_columns + (column + shift) % num_columns for shift in (-1, 1)}
        return across | {(row + shift) % num_rows * num_columns + column for shift in (-1, 1)}

    return _sorted([beside(rank) for rank in range(num_ranks)])


def exponential(num_ranks: int) -> Neighbours:
    """Join each rank to those 1, 2, 4, 8 ... before and after it.

    >>> exponential(8)[0]
    (1, 2, 4, 6, 7)
    """
    return _shifted(num_ranks, [1 << power for power in range(max(num_ranks - 1, 1).bit_length())])


def complete(num_ranks: int) -> Neighbours:
    """Join everybody to everybody."""
    return _sorted([set(range(num_ranks)) for _ in range(num_ranks)])


def star(num_ranks: int) -> Neighbours:
    """Join everybody to rank 0."""
    return _sorted([set(range(num_ranks)) if rank == 0 else {0} for rank in range(num_ranks)])


GRAPHS: Mapping[str, Callable[[int], Neighbours]] = MappingProxyType(
    {"ring": ring, "torus": torus, "exponential": exponential, "complete": complete, "star": star}
)


def _shifted(num_ranks: int, shifts: tuple[int, ...] | list[int]) -> Neighbours:
    both_ways = [sign * shift for shift in shifts for sign in (-1, 1)]
    return _sorted([{(rank + shift) % num_ranks for shift in both_ways} for rank in range(num_ranks)])


def _sorted(joined: list[set[int]]) -> Neighbours:
    return tuple(tuple(sorted(ranks - {rank})) for rank, ranks in enumerate(joined))
