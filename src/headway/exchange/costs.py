"""What an exchange takes: its collectives, with messages as long as the codec makes them, and its computing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.compress import Shape, wanted_entries
from headway.exchange.base import Traffic
from headway.exchange.catalogue import exchange_of
from headway.exchange.plan import AUTO, Plan
from headway.exchange.rehearsal import ComputeSpeed, Kind, kind_of
from headway.network import (
    Calibration,
    CollectiveCost,
    cheapest_algorithm,
    collective_cost,
    schedule_of,
)


@dataclass(frozen=True, kw_only=True)
class ExchangeCost:
    """Where the time of an exchange goes."""

    latency_s: float
    bandwidth_s: float
    overhead_s: float
    compute_s: float
    wire_bytes: int
    """Sent by the busiest rank."""
    algorithms: tuple[str, ...]
    """Of its collectives, in order."""

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.latency_s + self.bandwidth_s + self.overhead_s + self.compute_s


@dataclass(frozen=True)
class CostModel:
    """Foretells exchanges.

        t = latencies α + bytes β + overhead + computing, each summed over the collectives of the exchange

    Args:
        num_ranks: N.
        calibration: The link, and the machine's overhead.
        speeds: How fast exchanges compute; what is not in it takes no time.
    """

    num_ranks: int
    calibration: Calibration
    speeds: Mapping[Kind, ComputeSpeed] = field(default_factory=dict)

    def algorithm_of(self, traffic: Traffic) -> str:
        """Return the algorithm that is asked for, or the cheapest."""
        if traffic.algorithm != AUTO:
            return traffic.algorithm
        link, overhead = self.calibration.link, self.calibration.overhead
        return cheapest_algorithm(traffic.collective, self.num_ranks, traffic.num_bytes, link, overhead)

    def of_traffic(self, traffic: Traffic) -> CollectiveCost:
        """Return what a collective takes."""
        link, overhead = self.calibration.link, self.calibration.overhead
        algorithm = self.algorithm_of(traffic)
        return collective_cost(traffic.collective, algorithm, self.num_ranks, traffic.num_bytes, link, overhead)

    def of(self, plan: Plan, shape: Shape) -> ExchangeCost:
        """Return what the exchange of a bucket takes."""
        link = self.calibration.link
        traffic = exchange_of(plan).traffic(shape)
        costs = [self.of_traffic(each) for each in traffic]
        return ExchangeCost(
            latency_s=math.fsum(cost.latencies for cost in costs) * link.latency_s,
            bandwidth_s=math.fsum(cost.path_bytes for cost in costs) * 8 / link.bandwidth_bps,
            overhead_s=math.fsum(cost.overhead_s for cost in costs),
            compute_s=self.compute_s(plan, shape),
            wire_bytes=sum(self._wire_bytes(each) for each in traffic),
            algorithms=tuple(self.algorithm_of(each) for each in traffic),
        )

    def compute_s(self, plan: Plan, shape: Shape) -> float:
        """Return how long compressing and decompressing a bucket takes."""
        speed = self.speeds.get(kind_of(plan), ComputeSpeed())
        num_sent = wanted_entries(plan.ratio, shape.numel) if plan.sends_some else shape.numel
        return speed.seconds(shape.numel, num_sent) if self.num_ranks > 1 else 0.0

    def _wire_bytes(self, traffic: Traffic) -> int:
        algorithm = self.algorithm_of(traffic)
        schedule = schedule_of(traffic.collective, algorithm, self.num_ranks, traffic.num_bytes)
        return max(schedule.sent(rank, traffic.num_bytes) for rank in range(self.num_ranks))
