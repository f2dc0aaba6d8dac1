"""From a plan to the exchange that carries it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from headway.compress import LayerwiseTopK, MSTopK, Quantized, TopK
from headway.exchange.ar_topk import ArTopK, VarTopK
from headway.exchange.base import Exchange
from headway.exchange.dense import Dense
from headway.exchange.gather import Gather
from headway.exchange.plan import Plan
from headway.exchange.randomk import RandomK

EXCHANGES: Mapping[str, Callable[[Plan], Exchange]] = MappingProxyType(
    {
        "dense": lambda plan: Dense(plan.algorithm, plan.values),
        "allgather_topk": lambda plan: Gather(TopK(plan.ratio, plan.values), plan.algorithm),
        "star_topk": lambda plan: ArTopK(plan.ratio, plan.algorithm, plan.broadcast, plan.values),
        "var_topk": lambda plan: VarTopK(plan.ratio, plan.algorithm, plan.broadcast, plan.values),
        "layerwise_topk": lambda plan: Gather(LayerwiseTopK(plan.ratio, plan.values), plan.algorithm),
        "mstopk": lambda plan: Gather(MSTopK(plan.ratio, plan.values), plan.algorithm),
        "randomk": lambda plan: RandomK(plan.ratio, plan.algorithm, plan.values),
        "quantized": lambda plan: Gather(Quantized(plan.bits), plan.algorithm),
    }
)


def exchange_of(plan: Plan) -> Exchange:
    """Return the exchange that a plan asks for."""
    return EXCHANGES[plan.exchange](plan)
