"""The fastest exchange at each point of a grid of latencies and bandwidths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.collectives import NATIVE
from headway.compress import Shape
from headway.exchange import EXCHANGES, CostModel, Plan, default_candidates
from headway.network import Link


def contenders() -> tuple[str, ...]:
    """Return the exchanges to compare in a regime map: the candidates of the tuner, without variants of others."""
    return tuple(name for name in default_candidates() if EXCHANGES[name].description.variant_of is None)


@dataclass(frozen=True, kw_only=True)
class Regimes:
    """The winner at each latency (row) and bandwidth (column), for a number of ranks and a ratio."""

    num_ranks: int
    ratio: float
    latencies_s: Sequence[float]
    bandwidths_bps: Sequence[float]
    winners: Sequence[Sequence[tuple[str, str]]]
    """The exchange, and the algorithm that moves its values."""
    speedups: npt.NDArray[np.float64]
    """How many times faster than dense by torch's own all-reduce."""


def find_regimes(
    model: CostModel, shape: Shape, ratio: float, latencies_s: Sequence[float], bandwidths_bps: Sequence[float]
) -> Regimes:
    """Return the winner at each point of a grid, with fp32 values."""
    plans = [Plan(exchange=exchange, ratio=ratio, fusion="step") for exchange in contenders()]
    plain = Plan(exchange="dense", algorithm=NATIVE, fusion="step")
    winners: list[list[tuple[str, str]]] = []
    speedups = np.empty((len(latencies_s), len(bandwidths_bps)))
    for row, latency_s in enumerate(latencies_s):
        winners.append([])
        for column, bandwidth_bps in enumerate(bandwidths_bps):
            link = Link(latency_s=latency_s, bandwidth_bps=bandwidth_bps)
            here = model.on(link)
            costs = [(here.of(plan, shape), plan.exchange) for plan in plans]
            best, exchange = min(costs, key=lambda cost: cost[0].seconds)
            winners[-1].append((exchange, best.algorithms[-1]))
            speedups[row, column] = here.of(plain, shape).seconds / best.seconds if best.seconds else 1.0
    return Regimes(
        num_ranks=model.num_ranks,
        ratio=ratio,
        latencies_s=latencies_s,
        bandwidths_bps=bandwidths_bps,
        winners=winners,
        speedups=speedups,
    )
