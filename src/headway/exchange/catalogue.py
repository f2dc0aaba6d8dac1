"""The exchanges that come with Headway, in the order in which people see them."""

from __future__ import annotations

from headway.collectives import NATIVE
from headway.exchange.ar_topk import StarTopK, VarTopK
from headway.exchange.dense import Dense
from headway.exchange.description import register
from headway.exchange.gather import AllGatherTopK, LayerwiseTopKExchange, MSTopKExchange, QuantizedExchange
from headway.exchange.plan import Plan
from headway.exchange.randomk import RandomKExchange
from headway.exchange.union_topk import UnionTopK

for _exchange in (
    Dense,
    AllGatherTopK,
    StarTopK,
    VarTopK,
    UnionTopK,
    LayerwiseTopKExchange,
    MSTopKExchange,
    RandomKExchange,
    QuantizedExchange,
):
    register(_exchange)

PLAIN = Plan(exchange="dense", algorithm=NATIVE, fusion="bucket")
"""What DDP does without a hook."""


def is_plain(plan: Plan) -> bool:
    """Return whether a plan asks for what DDP does without a hook, whatever its fusion."""
    return (plan.exchange, plan.algorithm, plan.values) == (PLAIN.exchange, PLAIN.algorithm, PLAIN.values)
