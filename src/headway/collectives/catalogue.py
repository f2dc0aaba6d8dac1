"""Which algorithms there are, by collective and name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

from headway.collectives import all_gather, all_reduce, broadcast
from headway.collectives.schedule import Collective, Schedule

Builder = Callable[..., Schedule]

ALGORITHMS: Mapping[Collective, Mapping[str, Builder]] = MappingProxyType(
    {
        collective: MappingProxyType({name: getattr(room, name) for name in room.__all__})
        for collective, room in (
            (Collective.ALL_REDUCE, all_reduce),
            (Collective.ALL_GATHER, all_gather),
            (Collective.BROADCAST, broadcast),
        )
    }
)
"""Every algorithm of ours: collective -> name -> function that builds the schedule."""

_CHAIN_CHUNK_BYTES = 1 << 17
"""Chunks of a pipelined chain: small enough to fill the pipe soon, large enough to hide the cost of a message."""
_CHAIN_MAX_CHUNKS = 64


def build(
    collective: Collective | str, algorithm: str, num_ranks: int, *, root: int = 0, num_chunks: int | None = None
) -> Schedule:
    """Return the schedule of a named algorithm; the same object for the same arguments.

    >>> print(build(Collective.ALL_REDUCE, "ring", 4))
    all_reduce by ring over 4 ranks
    """
    collective = Collective(collective)
    if num_ranks < 1:
        raise ValueError(f"num_ranks is {num_ranks}, but there must be 1 or more")
    if not 0 <= root < num_ranks:
        raise ValueError(f"root is {root}, but ranks go from 0 to {num_ranks - 1}")
    if root and collective is not Collective.BROADCAST:
        raise ValueError(f"root is {root}, but {collective.value} has none: leave it out")
    if num_chunks is not None and (algorithm != "chain" or num_chunks < 1):
        raise ValueError(f"num_chunks is {num_chunks}, but it is for a chain, and must be 1 or more")
    return _build(collective, algorithm, num_ranks, root, num_chunks)


@lru_cache(maxsize=4096)
def _build(collective: Collective, algorithm: str, num_ranks: int, root: int, num_chunks: int | None) -> Schedule:
    builder = _builder(collective, algorithm)
    if collective is not Collective.BROADCAST:
        return builder(num_ranks)
    return builder(num_ranks, root) if num_chunks is None else builder(num_ranks, root, num_chunks)


def build_for(collective: Collective, algorithm: str, num_ranks: int, num_bytes: int, *, root: int = 0) -> Schedule:
    """Return the schedule of a named algorithm for a payload of this size: a chain is cut by it."""
    num_chunks = None
    if algorithm == "chain":
        num_chunks = min(max(1, num_bytes // _CHAIN_CHUNK_BYTES), _CHAIN_MAX_CHUNKS)
    return build(collective, algorithm, num_ranks, root=root, num_chunks=num_chunks)


def _builder(collective: Collective, algorithm: str) -> Builder:
    known = ALGORITHMS.get(collective, {})
    if algorithm not in known:
        raise ValueError(f"{collective.value} has no algorithm {algorithm!r}: choose one of {', '.join(sorted(known))}")
    return known[algorithm]
