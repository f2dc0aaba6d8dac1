"""The algorithms, by collective and name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from headway.collectives import all_gather, all_reduce, broadcast
from headway.collectives.schedule import Collective, Schedule
from headway.collectives.verification import verify

Builder = Callable[..., Schedule]

AUTO: Final = "auto"
"""The cheapest algorithm for the link in force."""
NATIVE: Final = "native"
"""torch's own collective: the best choice for dense payloads on fast networks, and the only one on NCCL."""

_REGISTERED: dict[Collective, dict[str, Builder]] = {
    collective: {name: getattr(room, name) for name in room.__all__}
    for collective, room in (
        (Collective.ALL_REDUCE, all_reduce),
        (Collective.ALL_GATHER, all_gather),
        (Collective.BROADCAST, broadcast),
    )
}
ALGORITHMS: Mapping[Collective, Mapping[str, Builder]] = MappingProxyType(
    {collective: MappingProxyType(builders) for collective, builders in _REGISTERED.items()}
)
"""Our algorithms: collective -> name -> function that builds the schedule."""
_MOST_VERIFIED = 9
"""The most ranks for which a new algorithm is proved correct when it is registered."""

_CHAIN_CHUNK_BYTES = 1 << 17
"""Chunk size of a chain: small enough to fill the pipeline soon, large enough to hide the cost of a message."""
_CHAIN_MAX_CHUNKS = 64


def build(
    collective: Collective | str, algorithm: str, num_ranks: int, *, root: int = 0, num_chunks: int | None = None
) -> Schedule:
    """Return the schedule of an algorithm; the same object for the same arguments.

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


def register_algorithm(collective: Collective, builder: Builder) -> None:
    """Make an algorithm known by the name of its function, once it is proved correct for up to 9 ranks.

    All ranks register the same algorithms, before they make a plan that names one.

    Args:
        collective: What the algorithm does.
        builder: Takes the number of ranks, and for a broadcast the root, to a schedule.

    Raises:
        ValueError: The name is taken, or a schedule is wrong (`ScheduleError`, which says where).
    """
    known, name = _REGISTERED[collective], builder.__name__
    if known.get(name, builder) is not builder or name in (AUTO, NATIVE):
        raise ValueError(f"{collective.value} has an algorithm {name!r} already: choose another name")
    for num_ranks in range(1, _MOST_VERIFIED + 1):
        roots = range(num_ranks) if collective is Collective.BROADCAST else (None,)
        for root in roots:
            verify(builder(num_ranks) if root is None else builder(num_ranks, root))
    known[name] = builder


def build_for(collective: Collective, algorithm: str, num_ranks: int, num_bytes: int, *, root: int = 0) -> Schedule:
    """Return the schedule of an algorithm for a payload of this size, on which the chunks of a chain depend."""
    num_chunks = None
    if algorithm == "chain":
        num_chunks = min(max(1, num_bytes // _CHAIN_CHUNK_BYTES), _CHAIN_MAX_CHUNKS)
    return build(collective, algorithm, num_ranks, root=root, num_chunks=num_chunks)


def _builder(collective: Collective, algorithm: str) -> Builder:
    known = ALGORITHMS.get(collective, {})
    if algorithm not in known:
        raise ValueError(f"{collective.value} has no algorithm {algorithm!r}: choose one of {', '.join(sorted(known))}")
    return known[algorithm]
