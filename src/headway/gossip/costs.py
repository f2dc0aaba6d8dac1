"""The predicted cost of a round of gossip."""

from __future__ import annotations

import time

import torch

from headway.compress import Compressor
from headway.gossip.edge import MessageLayout
from headway.gossip.topology import Topology
from headway.network import Calibration, Cost

_MOST_MEASURED = 1 << 20


def gossip_cost(
    compressor: Compressor, topology: Topology, numel: int, calibration: Calibration, compute_s: float = 0.0
) -> Cost:
    """Return the cost of a round: t = α + degree M β + overhead + compute, for any number of ranks.

    It is that of what `Neighbourhood` does. Receives are posted two rounds ahead, so that all messages leave at once
    and one latency passes; those of the rank with the most neighbours share its NIC, and arrive last.

    Args:
        compressor: Compressor of the messages.
        topology: The mixing matrix.
        numel: Number of parameters of the model.
        calibration: Model of link and machine.
        compute_s: Time to compress and decompress, from `measure_compute_s`.

    >>> from headway.compress import StochasticQuantizer
    >>> from headway.gossip import topology_of
    >>> from headway.network import Link
    >>> far = Calibration(link=Link(latency_s=0.05, bandwidth_bps=1e7))
    >>> rings = [topology_of("ring", num_ranks) for num_ranks in (8, 64)]
    >>> [round(gossip_cost(StochasticQuantizer(bits=8), ring, 10**6, far).seconds, 2) for ring in rings]
    [1.66, 1.66]
    """
    degree = topology.degree
    if degree == 0:
        return Cost(latency_s=0.0, bandwidth_s=0.0, overhead_s=0.0)
    wire_bytes = degree * MessageLayout(payload_bytes=compressor.num_bytes(numel)).num_bytes(1)
    return Cost(
        latency_s=calibration.link.latency_s,
        bandwidth_s=wire_bytes * 8 / calibration.link.bandwidth_bps,
        overhead_s=calibration.overhead.of_schedule(1, 2 * degree, 2 * wire_bytes),  # as many arrive as are sent
        compute_s=compute_s,
        wire_bytes=wire_bytes,
    )


def measure_compute_s(compressor: Compressor, degree: int, numel: int) -> float:
    """Measure how long this machine takes to encode a message, and to decode it and those of the neighbours."""
    sample = min(numel, _MOST_MEASURED)
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
