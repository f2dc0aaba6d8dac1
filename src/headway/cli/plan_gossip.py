"""``headway plan``: the predicted cost of gossip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.compress import Compressor, Contraction, FullPrecision, Sign, StochasticQuantizer
from headway.gossip import Topology, gossip_cost, measure_compute_s
from headway.network import Calibration, Cost

_CANDIDATES: tuple[tuple[str, Compressor, bool], ...] = (
    ("dpsgd", FullPrecision(), True),
    ("dcd 8 bits", StochasticQuantizer(bits=8), True),
    ("ecd 8 bits", StochasticQuantizer(bits=8, step=1.0), True),
    ("choco 4 bits", Contraction(StochasticQuantizer(bits=4)), False),
    ("choco sign", Sign(), False),
)
"""An algorithm, its compressor, and whether its exchange overlaps with the next forward and backward."""


@dataclass(frozen=True)
class GossipOption:
    """An algorithm with a compressor, and the cost of its exchange."""

    name: str
    overlaps: bool
    cost: Cost


def gossip_options(topology: Topology, numel: int, calibration: Calibration) -> Sequence[GossipOption]:
    """Return the cost of every algorithm."""
    found = []
    for name, compressor, overlaps in _CANDIDATES:
        compute_s = measure_compute_s(compressor, topology.degree, numel) if topology.degree else 0.0
        cost = gossip_cost(compressor, topology, numel, calibration, compute_s)
        found.append(GossipOption(name, overlaps=overlaps, cost=cost))
    return found


def as_json(option: GossipOption, topology: Topology) -> dict[str, Any]:
    """Return plain data."""
    return {
        "algorithm": option.name,
        "topology": topology.name,
        **cost_as_json(option.cost),
        "overlaps": option.overlaps,
    }


def cost_as_json(cost: Cost) -> dict[str, Any]:
    """Return the parts of the time, and the bytes sent."""
    return {
        "ms": 1e3 * cost.seconds,
        "latency_ms": 1e3 * cost.latency_s,
        "bandwidth_ms": 1e3 * cost.bandwidth_s,
        "overhead_ms": 1e3 * cost.overhead_s,
        "computing_ms": 1e3 * cost.compute_s,
        "wire_bytes": cost.wire_bytes,
    }
