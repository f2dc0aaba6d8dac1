"""Totals and the plan in force, read from a handle: a hook, an optimizer of local steps or gossip, or a similar one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol

from headway.ddp import HookState
from headway.exchange import saved_share
from headway.gossip import GossipOptimizer
from headway.local import LocalOptimizer


class Counted(Protocol):
    """A handle that counts its traffic. Its ``str`` is its plan; an attribute ``exchange`` may name the exchange."""

    def statistics(self) -> Any:
        """Return an object with ``step``, ``wire_bytes`` and ``dense_bytes``."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Totals of this rank since the handle was made, and the plan in force. Unknown values are NaN."""

    step: int
    wire_bytes: int
    dense_bytes: int
    """What ring all-reduces of everything would have sent."""
    compress_s: float = 0.0
    wait_s: float = 0.0
    transfer_s: float = 0.0
    num_exchanges: int = 0
    ratio_sum: float = 0.0
    """The sum over exchanges."""
    gain_sum: float = 0.0
    """The sum over the exchanges whose gain is known."""
    num_gains: int = 0
    exchange: str = ""
    """The name of the exchange, such as "star_topk"; for gossip, its description."""
    plan: str = ""
    """The plan's label for people."""
    latency_s: float = math.nan
    bandwidth_bps: float = math.nan
    local_steps: float = math.nan
    """Steps from one exchange to the next, where ranks take local steps."""
    agreement: float = math.nan
    """How much the latest differences of this rank agree with the average: see `LocalOptimizer.agreement`."""

    @property
    def saved(self) -> float:
        """The share of dense traffic that was not sent."""
        return saved_share(self.wire_bytes, self.dense_bytes)


SUMS = (
    *("wire_bytes", "dense_bytes", "compress_s", "wait_s", "transfer_s"),
    *("num_exchanges", "ratio_sum", "gain_sum", "num_gains"),
)
"""The fields of a reading that add up over time."""


def read(handle: Counted) -> Reading:
    """Read a handle, which may be in use by training."""
    if isinstance(handle, HookState):
        return _read_planned(handle)
    if isinstance(handle, LocalOptimizer):
        return replace(_read_planned(handle), local_steps=handle.plan.local_steps, agreement=handle.agreement)
    if isinstance(handle, GossipOptimizer):
        return _read_gossip(handle)
    totals, plan = handle.statistics(), str(handle)
    return Reading(
        step=totals.step,
        wire_bytes=totals.wire_bytes,
        dense_bytes=totals.dense_bytes,
        exchange=getattr(handle, "exchange", plan),
        plan=plan,
    )


def _read_planned(handle: HookState | LocalOptimizer) -> Reading:
    totals, plan, network = handle.statistics(), handle.plan, handle.network
    sums = {name: _sum_over(totals.exchanges.values(), name) for name in SUMS}
    return Reading(
        step=totals.step,
        exchange=plan.exchange,
        plan=plan.label,
        **{**sums, "dense_bytes": totals.dense_bytes},
        **({} if network is None else vars(network.estimate.link)),
    )


def _sum_over(exchanges: Any, name: str) -> Any:
    values = [getattr(totals, name) for totals in exchanges]
    return math.fsum(values) if name.endswith(("_s", "_sum")) else sum(values)


def _read_gossip(optimizer: GossipOptimizer) -> Reading:
    totals = optimizer.statistics()
    return Reading(
        step=totals.step,
        wire_bytes=totals.wire_bytes,
        dense_bytes=totals.dense_bytes,
        compress_s=totals.compress_s,
        wait_s=totals.wait_s,
        transfer_s=totals.exchange_s,
        exchange=optimizer.description,
        plan=optimizer.description,
    )
