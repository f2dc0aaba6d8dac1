"""The channel of a run: collectives of an executor, by the cheapest algorithm, counted and timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from headway.collectives import NATIVE, Collective, Executor
from headway.exchange.base import Traffic
from headway.exchange.costs import CostModel
from headway.exchange.records import TimedCollective
from headway.kernels.arrays import uses_torch
from headway.network import Calibration, Link, schedule_of


@dataclass
class Meter:
    """What went through a channel since it was last read."""

    wire_bytes: int = 0
    latencies: float = 0.0
    transfer_s: float = 0.0
    algorithm: str = NATIVE
    largest: TimedCollective | None = None

    def add(self, collective: TimedCollective, wire_bytes: int) -> None:
        """Add a collective."""
        self.wire_bytes += wire_bytes
        self.latencies += collective.cost.latencies
        self.transfer_s += collective.ended_at - collective.begun_at
        if self.largest is None or collective.cost.path_bytes > self.largest.cost.path_bytes:
            self.largest = collective


@dataclass
class ExecutorChannel:
    """Collectives of one executor.

    Args:
        executor: Runs the collectives.
        costs: Predicts costs on the link in force, by which "auto" is decided; the averager sets it at every step.
    """

    executor: Executor
    costs: CostModel
    meter: Meter = field(default_factory=Meter)

    @classmethod
    def over(cls, executor: Executor, link: Link) -> ExecutorChannel:
        """Return a channel over a known link, on a machine of average overhead."""
        return cls(executor, CostModel(executor.num_ranks, Calibration(link=link)))

    @property
    def rank(self) -> int:
        return self.executor.rank

    @property
    def num_ranks(self) -> int:
        return self.executor.num_ranks

    def all_reduce(self, tensor: Tensor, algorithm: str) -> Tensor:
        with self._metered(Collective.ALL_REDUCE, algorithm, tensor) as chosen:
            return self.executor.all_reduce(tensor, chosen)

    def start_plain_sum(self, tensor: Tensor) -> Callable[[], None]:
        """Start torch's own all-reduce; return a function that waits for it. Several may run at the same time."""
        start = time.perf_counter()
        wait = self.executor.start_all_reduce(tensor)

        def finish() -> None:
            wait()
            self._count(Collective.ALL_REDUCE, NATIVE, tensor, start)

        return finish

    def all_gather(self, message: Tensor, algorithm: str) -> Tensor:
        with self._metered(Collective.ALL_GATHER, algorithm, message) as chosen:
            return self.executor.all_gather(message, chosen)

    def broadcast(self, tensor: Tensor, root: int, algorithm: str) -> Tensor:
        with self._metered(Collective.BROADCAST, algorithm, tensor, root) as chosen:
            return self.executor.broadcast(tensor, root, chosen)

    def read_meter(self) -> Meter:
        """Return the meter, and start a new one."""
        meter, self.meter = self.meter, Meter()
        return meter

    @contextmanager
    def _metered(self, collective: Collective, algorithm: str, tensor: Tensor, root: int = 0) -> Iterator[str]:
        traffic = Traffic(collective, NATIVE if uses_torch(tensor) else algorithm, tensor.nbytes)
        chosen = self.costs.algorithm_of(traffic)
        start = time.perf_counter()
        yield chosen
        self._count(collective, chosen, tensor, start, root)

    def _count(self, collective: Collective, chosen: str, tensor: Tensor, start: float, root: int = 0) -> None:
        end = time.perf_counter()
        schedule = schedule_of(collective, chosen, self.num_ranks, tensor.nbytes, root)
        wire_bytes = schedule.sent(self.rank, tensor.numel()) * tensor.element_size()
        cost = self.costs.of_traffic(Traffic(collective, chosen, tensor.nbytes))
        self.meter.add(TimedCollective(begun_at=start, ended_at=end, cost=cost), wire_bytes)
        if collective is not Collective.BROADCAST:
            self.meter.algorithm = chosen
