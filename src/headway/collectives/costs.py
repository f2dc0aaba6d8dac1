"""Alpha-beta time, counted on the schedule itself.

A transfer starts when its source has the chunks and its NIC is free, and takes α + bytes β; a NIC sends one
transfer at a time and receives one at a time. So transfers that follow each other from one NIC pay α side by side,
and transfers that depend on each other pay it one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from headway.collectives.catalogue import ALGORITHMS, build_for
from headway.collectives.schedule import Collective, Round, Schedule


class Link(Protocol):
    """What a network is made of, one way."""

    @property
    def latency_s(self) -> float | None:
        """α; None is 0."""

    @property
    def bandwidth_bps(self) -> float | None:
        """8/β; None is infinite."""


Links = Link | Callable[[int, int], Link]
"""One link for all, or a function that gives the link from one rank to another."""


@dataclass(frozen=True, kw_only=True)
class CriticalPath:
    """How often a schedule pays α, and how many payloads it waits for."""

    num_rounds: int
    num_payloads: float


@lru_cache(maxsize=4096)
def critical_path(schedule: Schedule) -> CriticalPath:
    """Count rounds and payloads along the critical path, for links that are all alike.

    >>> critical_path(build_for(Collective.ALL_REDUCE, "ring", 8, 0))
    CriticalPath(num_rounds=14, num_payloads=1.75)
    """
    chunk = 1.0 if schedule.collective.one_chunk_a_rank else 1 / schedule.num_chunks
    rounds = _Clock(schedule, lambda _src, _dst: (1.0, 0.0)).run()
    chunks = _Clock(schedule, lambda _src, _dst: (0.0, 1.0)).run()
    return CriticalPath(num_rounds=round(rounds), num_payloads=chunks * chunk)


def cost(schedule: Schedule, link: Links, num_bytes: int) -> float:
    """Return the seconds a schedule takes.

    With one link for all, t = rounds α + payloads M β, both counted along the critical path; with a link for each pair,
    transfer by transfer.

    Args:
        schedule: What is done.
        link: The link between any two ranks, or a function ``(src, dst) -> link``.
        num_bytes: M: the bytes of the payload; in an all-gather and a neighbour exchange, of one rank's message.

    >>> from headway.lab import Link
    >>> ring = build_for(Collective.ALL_REDUCE, "ring", 8, 400_000)
    >>> round(cost(ring, Link(latency_s=0.020, bandwidth_bps=1e9), 400_000), 4)
    0.2856
    """
    if callable(link):
        return _cost_of_pairs(schedule, link, num_bytes)
    alpha, beta = _alpha_beta(link)
    path = critical_path(schedule)
    return path.num_rounds * alpha + path.num_payloads * num_bytes * beta


def cheapest(collective: Collective, num_ranks: int, link: Links, num_bytes: int, *, root: int = 0) -> Schedule:
    """Return the schedule of least cost among all algorithms of ours; of equal ones, the one with the fewest transfers.

    >>> from headway.lab import Link
    >>> cheapest(Collective.ALL_REDUCE, 8, Link(latency_s=0.020, bandwidth_bps=1e9), 4096).algorithm
    'one_shot'
    """
    candidates = [
        build_for(collective, algorithm, num_ranks, num_bytes, root=root) for algorithm in ALGORITHMS[collective]
    ]
    return min(candidates, key=lambda schedule: (cost(schedule, link, num_bytes), len(schedule.transfers)))


def _alpha_beta(link: Link) -> tuple[float, float]:
    return link.latency_s or 0.0, 8 / link.bandwidth_bps if link.bandwidth_bps else 0.0


def _cost_of_pairs(schedule: Schedule, link: Callable[[int, int], Link], num_bytes: int) -> float:
    chunk_bytes = num_bytes if schedule.collective.one_chunk_a_rank else num_bytes / schedule.num_chunks

    def alpha_beta(src: int, dst: int) -> tuple[float, float]:
        alpha, beta = _alpha_beta(link(src, dst))
        return alpha, beta * chunk_bytes

    return _Clock(schedule, alpha_beta).run()


class _Clock:
    """When each chunk is where: a schedule run in virtual time, with (α, seconds a chunk) for each pair."""

    def __init__(self, schedule: Schedule, alpha_beta: Callable[[int, int], tuple[float, float]]) -> None:
        self.schedule = schedule
        self.alpha_beta = alpha_beta
        self.ready = [[0.0] * schedule.num_chunks for _ in range(schedule.num_ranks)]
        self.out_free = [0.0] * schedule.num_ranks
        self.in_free = [0.0] * schedule.num_ranks

    def run(self) -> float:
        for transfers in self.schedule.rounds:
            self._round(transfers)
        return max(max(times) for times in self.ready)

    def _round(self, transfers: Round) -> None:
        """Start what is sent in list order, and receive in order of arrival."""
        arriving = []
        for place, t in enumerate(transfers):
            alpha, chunk_s = self.alpha_beta(t.src, t.dst)
            start = max(self.out_free[t.src], *self.ready[t.src][t.start : t.stop])
            self.out_free[t.src] = start + (t.stop - t.start) * chunk_s
            arriving.append((start + alpha, place, (t.stop - t.start) * chunk_s))
        for first_byte, place, seconds in sorted(arriving):
            t = transfers[place]
            end = self.in_free[t.dst] = max(first_byte, self.in_free[t.dst]) + seconds
            self.ready[t.dst][t.start : t.stop] = [max(end, ready) for ready in self.ready[t.dst][t.start : t.stop]]
