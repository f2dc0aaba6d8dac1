"""What an exchange sends through: collectives whose algorithm is chosen by cost, counted and timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

from torch import Tensor

from headway.collectives import ALGORITHMS, NATIVE, Collective, Executor, Schedule, build_for, cost, critical_path
from headway.exchange.plan import AUTO
from headway.kernels.arrays import uses_torch
from headway.network import Link

_NATIVE_LIKE = {Collective.ALL_REDUCE: "ring", Collective.ALL_GATHER: "ring", Collective.BROADCAST: "tree"}
"""The schedules that Gloo's own collectives come nearest to."""
_NATIVE_ALPHAS = 2
"""Gloo posts receives when it gets to them: a round costs two latencies."""
_MESSAGE_S = 1e-4
"""What starting and ending a message of ours costs; Gloo's own rounds cost about as much."""
_BYTE_S = 1e-9
"""What copying in and out of lanes costs for a byte of ours: on a fast network it is why native wins."""


@dataclass(frozen=True)
class Traffic:
    """A collective that an exchange is going to run: which, by which algorithm, and with how many bytes."""

    collective: Collective
    algorithm: str
    num_bytes: int


@dataclass
class Meter:
    """What went through a channel since the last reading."""

    wire_bytes: int = 0
    rounds: int = 0
    transfer_s: float = 0.0
    algorithm: str = NATIVE


@dataclass
class Channel:
    """Collectives of one executor.

    Args:
        executor: Runs them.
        link: The link in force, by which "auto" is decided.
    """

    executor: Executor
    link: Link
    meter: Meter = field(default_factory=Meter)

    @property
    def rank(self) -> int:
        """This rank."""
        return self.executor.rank

    @property
    def num_ranks(self) -> int:
        """How many there are."""
        return self.executor.num_ranks

    def all_reduce(self, tensor: Tensor, algorithm: str) -> Tensor:
        """Sum in place."""
        with self._metered(Collective.ALL_REDUCE, algorithm, tensor) as chosen:
            return self.executor.all_reduce(tensor, chosen)

    def start_plain_sum(self, tensor: Tensor) -> Callable[[], None]:
        """Start torch's own all-reduce; return what waits for it. Several may be under way."""
        start = time.perf_counter()
        wait = self.executor.start_all_reduce(tensor)

        def finish() -> None:
            wait()
            self._count(Collective.ALL_REDUCE, NATIVE, tensor, time.perf_counter() - start)

        return finish

    def all_gather(self, message: Tensor, algorithm: str) -> Tensor:
        """Return every rank's message, a row each."""
        with self._metered(Collective.ALL_GATHER, algorithm, message) as chosen:
            return self.executor.all_gather(message, chosen)

    def broadcast(self, tensor: Tensor, root: int, algorithm: str) -> Tensor:
        """Replace a tensor by the root's."""
        with self._metered(Collective.BROADCAST, algorithm, tensor, root) as chosen:
            return self.executor.broadcast(tensor, root, chosen)

    def predicted_s(self, traffic: Traffic) -> float:
        """Return how long a collective takes on the link in force."""
        algorithm = self._choose(traffic.collective, traffic.algorithm, traffic.num_bytes)
        return predicted_s(traffic.collective, algorithm, self.num_ranks, self.link, traffic.num_bytes)

    def read_meter(self) -> Meter:
        """Return what was counted, and start again."""
        meter, self.meter = self.meter, Meter()
        return meter

    def _choose(self, collective: Collective, algorithm: str, num_bytes: int) -> str:
        return cheapest(collective, self.num_ranks, self.link, num_bytes) if algorithm == AUTO else algorithm

    @contextmanager
    def _metered(self, collective: Collective, algorithm: str, tensor: Tensor, root: int = 0) -> Iterator[str]:
        chosen = NATIVE if uses_torch(tensor) else self._choose(collective, algorithm, tensor.nbytes)
        start = time.perf_counter()
        yield chosen
        self._count(collective, chosen, tensor, time.perf_counter() - start, root)

    def _count(self, collective: Collective, chosen: str, tensor: Tensor, seconds: float, root: int = 0) -> None:
        self.meter.transfer_s += seconds
        schedule = schedule_of(collective, chosen, self.num_ranks, tensor.nbytes, root)
        self.meter.wire_bytes += schedule.sent(self.rank, tensor.numel()) * tensor.element_size()
        self.meter.rounds += critical_path(schedule).num_rounds
        if collective is not Collective.BROADCAST:
            self.meter.algorithm = chosen


def schedule_of(collective: Collective, algorithm: str, num_ranks: int, num_bytes: int, root: int = 0) -> Schedule:
    """Return the schedule of an algorithm, or the one that native comes nearest to."""
    name = _NATIVE_LIKE[collective] if algorithm == NATIVE else algorithm
    return build_for(collective, name, num_ranks, num_bytes, root=root)


@lru_cache(maxsize=4096)
def cheapest(collective: Collective, num_ranks: int, link: Link, num_bytes: int) -> str:
    """Return the algorithm of least predicted time, native among them."""
    names = (NATIVE, *ALGORITHMS[collective])
    return min(names, key=lambda name: predicted_s(collective, name, num_ranks, link, num_bytes))


def predicted_s(collective: Collective, algorithm: str, num_ranks: int, link: Link, num_bytes: int) -> float:
    """Return alpha-beta time and overhead of a collective."""
    schedule = schedule_of(collective, algorithm, num_ranks, num_bytes)
    if algorithm == NATIVE:
        slow = Link(latency_s=_NATIVE_ALPHAS * link.latency_s, bandwidth_bps=link.bandwidth_bps)
        return cost(schedule, slow, num_bytes) + critical_path(schedule).num_rounds * _MESSAGE_S
    busiest = max((len(part) for part in schedule.parts), default=0)
    return cost(schedule, link, num_bytes) + busiest * _MESSAGE_S + num_bytes * _BYTE_S
