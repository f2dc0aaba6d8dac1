"""What an exchange of gossip takes, foretold."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from headway.collectives import neighbour_exchange, shared_payloads
from headway.compress import PlainCompressor
from headway.gossip.edge import HEADER_BYTES
from headway.gossip.topology import Topology
from headway.network import Calibration

_MOST_REHEARSED = 1 << 20


@dataclass(frozen=True, kw_only=True)
class GossipCost:
    """Where the time of an exchange goes, and what a rank sends in it."""

    latency_s: float
    bandwidth_s: float
    overhead_s: float
    compute_s: float
    wire_bytes: int
    """Sent by the busiest rank."""

    @property
    def seconds(self) -> float:
        """All of it, one after the other."""
        return self.latency_s + self.bandwidth_s + self.overhead_s + self.compute_s


def gossip_cost(
    compressor: PlainCompressor, topology: Topology, numel: int, calibration: Calibration, compute_s: float = 0.0
) -> GossipCost:
    """Return what an exchange takes: t = α + degree M β + overhead + computing, however many ranks there are.

    Args:
        compressor: How messages are made.
        topology: Who is joined to whom.
        numel: How many parameters the model has.
        calibration: Link and machine.
        compute_s: What compressing and decompressing takes, from `rehearsed_s`.

    >>> from headway.compress import StochasticQuantizer
    >>> from headway.gossip import topology_of
    >>> from headway.network import Link
    >>> far = Calibration(link=Link(latency_s=0.05, bandwidth_bps=1e7))
    >>> rings = [topology_of("ring", num_ranks) for num_ranks in (8, 64)]
    >>> [round(gossip_cost(StochasticQuantizer(bits=8), ring, 10**6, far).seconds, 2) for ring in rings]
    [1.66, 1.66]
    """
    schedule = neighbour_exchange(topology.neighbours)
    if not schedule.rounds:
        return GossipCost(latency_s=0.0, bandwidth_s=0.0, overhead_s=0.0, compute_s=0.0, wire_bytes=0)
    num_bytes, link = HEADER_BYTES + compressor.num_bytes(numel), calibration.link
    num_messages = 2 * topology.degree
    return GossipCost(
        latency_s=link.latency_s,
        bandwidth_s=shared_payloads(schedule) * num_bytes * 8 / link.bandwidth_bps,
        overhead_s=calibration.overhead.of_schedule(1, num_messages, num_messages * num_bytes),
        compute_s=compute_s,
        wire_bytes=topology.degree * num_bytes,
    )


def rehearsed_s(compressor: PlainCompressor, degree: int, numel: int) -> float:
    """Return how long this machine takes to make a message, and to read it and those of the neighbours."""
    sample = min(numel, _MOST_REHEARSED)
    x, sent = torch.randn(sample), torch.empty(sample)
    message = torch.empty(compressor.num_bytes(sample), dtype=torch.uint8)
    best_s = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        compressor.encode(x, 1, out=message)
        for _ in range(degree + 1):
            compressor.decode(message, 1, out=sent)
            x.add_(sent, alpha=0.0)
        best_s = min(best_s, time.perf_counter() - start)
    return best_s * numel / sample
