"""Predicts what an exchange costs: its collectives, with messages of the codec's size, and its computing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from headway.collectives import AUTO
from headway.compress import Shape, wanted_entries
from headway.exchange.base import Traffic, exchange_of
from headway.exchange.compute_speed import ComputeSpeed
from headway.exchange.plan import Form, Plan
from headway.network import (
    Calibration,
    CollectiveCost,
    CollectiveTable,
    Cost,
    Link,
    cheapest_algorithm,
    collective_cost,
    schedule_of,
)

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ExchangeCost(Cost):
    """The cost of an exchange, and the algorithms it was predicted for."""

    algorithms: tuple[str, ...]
    """The algorithms of its collectives, in order."""


@dataclass(frozen=True)
class CostModel:
    """Predicts the cost of exchanges.

        t = latencies α + bytes β + overhead + computing, each summed over the collectives of the exchange

    Args:
        num_ranks: The number of ranks, N.
        calibration: The link, and the overhead of the machine.
        speeds: How fast each form of plan computes; a form that is missing counts as free.
    """

    num_ranks: int
    calibration: Calibration
    speeds: Mapping[Form, ComputeSpeed] = field(default_factory=dict)

    @property
    def link(self) -> Link:
        """The link that costs are predicted for."""
        return self.calibration.link

    def on(self, link: Link) -> CostModel:
        """Return the same model for another link."""
        return self if link == self.link else replace(self, calibration=replace(self.calibration, link=link))

    def algorithm_of(self, traffic: Traffic) -> str:
        """Return the algorithm that was asked for, or the cheapest one."""
        if traffic.algorithm != AUTO:
            return traffic.algorithm
        overhead = self.calibration.overhead
        return cheapest_algorithm(traffic.collective, self.num_ranks, traffic.num_bytes, self.link, overhead)

    def of_traffic(self, traffic: Traffic) -> CollectiveCost:
        """Return the cost of a collective."""
        algorithm, overhead = self.algorithm_of(traffic), self.calibration.overhead
        return collective_cost(traffic.collective, algorithm, self.num_ranks, traffic.num_bytes, self.link, overhead)

    def of(self, plan: Plan, shape: Shape) -> ExchangeCost:
        """Return the cost of exchanging one bucket."""
        traffic = exchange_of(plan).traffic(shape, self.num_ranks)
        costs = [self.of_traffic(each) for each in traffic]
        return ExchangeCost(
            latency_s=math.fsum(cost.latencies for cost in costs) * self.link.latency_s,
            bandwidth_s=math.fsum(cost.path_bytes for cost in costs) * 8 / self.link.bandwidth_bps,
            overhead_s=math.fsum(cost.overhead_s for cost in costs),
            compute_s=self.compute_s(plan, shape),
            wire_bytes=sum(self._wire_bytes(each) for each in traffic),
            algorithms=tuple(self.algorithm_of(each) for each in traffic),
        )

    def compute_s(self, plan: Plan, shape: Shape) -> float:
        """Return the time of compressing and decompressing a bucket."""
        speed = self.speeds.get(plan.form, ComputeSpeed())
        num_sent = wanted_entries(plan.sent_ratio, shape.numel)
        return speed.seconds(shape.numel, num_sent) if self.num_ranks > 1 else 0.0

    def _wire_bytes(self, traffic: Traffic) -> int:
        algorithm = self.algorithm_of(traffic)
        schedule = schedule_of(traffic.collective, algorithm, self.num_ranks, traffic.num_bytes)
        return max(schedule.sent(rank, traffic.num_bytes) for rank in range(self.num_ranks))


class CostTable:
    """The costs of thousands of plans (rows) for some buckets (columns), on any link: `CostModel` vectorised.

    Args:
        model: Gives ranks, overhead and speeds; its link does not matter.
        plans: The plans to predict.
        shapes: The shapes of the buckets.
    """

    def __init__(self, model: CostModel, plans: Sequence[Plan], shapes: Sequence[Shape]) -> None:
        distinct = list(dict.fromkeys(shapes))  # equal layers make buckets of equal shape
        self._columns = [distinct.index(shape) for shape in shapes]
        traffic = [[exchange_of(plan).traffic(shape, model.num_ranks) for shape in distinct] for plan in plans]
        keys = [[[(t.collective, t.algorithm, t.num_bytes) for t in each] for each in row] for row in traffic]
        flat = (key for row in keys for each in row for key in each)
        self._table = CollectiveTable(flat, model.num_ranks, model.calibration.overhead)
        most = max((len(each) for row in keys for each in row), default=0)
        self._rows = np.full((len(plans), len(distinct), most), len(self._table.row_of))
        for i, row in enumerate(keys):
            for j, each in enumerate(row):
                self._rows[i, j, : len(each)] = [self._table.row_of[key] for key in each]
        compute_s = [model.compute_s(plan, shape) for plan in plans for shape in distinct]
        table = np.array(compute_s, dtype=np.float64).reshape(len(plans), len(distinct))
        self.compute_s: Seconds = table[:, self._columns]

    def sync_s(self, link: Link) -> Seconds:
        """Return the time of the collectives of each plan for each bucket."""
        seconds = np.append(self._table.seconds(link), 0.0)
        return np.asarray(seconds[self._rows].sum(axis=2)[:, self._columns])
