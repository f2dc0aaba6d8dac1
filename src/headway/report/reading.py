"""What can be read off a handle at one moment: of `headway.attach`, of `headway.gossip.wrap`, or of nobody's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from headway.ddp import HookState
from headway.gossip import GossipOptimizer
from headway.tuner import describe


class Counted(Protocol):
    """What tells its traffic, whatever it is."""

    def statistics(self) -> Any:
        """Return an object with ``step``, ``wire_bytes`` and ``dense_bytes``, and perhaps times."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Totals of this rank since the handle was made, and what is in force now. What is not known is NaN."""

    step: int
    wire_bytes: int
    dense_bytes: int
    """What ring all-reduces of everything would have sent."""
    compress_s: float = 0.0
    wait_s: float = 0.0
    transfer_s: float = 0.0
    num_exchanges: int = 0
    ratio_sum: float = 0.0
    """Over exchanges."""
    gain_sum: float = 0.0
    """Over those exchanges that know their gain."""
    num_gains: int = 0
    plan: str = ""
    """In words."""
    latency_s: float = math.nan
    bandwidth_bps: float = math.nan

    @property
    def saved(self) -> float:
        """The share of dense traffic that was not sent."""
        return 1 - self.wire_bytes / self.dense_bytes if self.dense_bytes else 0.0


SUMS = (
    "wire_bytes",
    "dense_bytes",
    "compress_s",
    "wait_s",
    "transfer_s",
    "num_exchanges",
    "ratio_sum",
    "gain_sum",
    "num_gains",
)
"""The fields of a reading that only grow."""


def read(handle: Counted) -> Reading:
    """Read a handle; it may be training."""
    if isinstance(handle, HookState):
        return _read_hook(handle)
    if isinstance(handle, GossipOptimizer):
        return _read_gossip(handle)
    said = handle.statistics()
    return Reading(step=said.step, wire_bytes=said.wire_bytes, dense_bytes=said.dense_bytes, plan=str(handle))


def scalars(handle: Counted) -> dict[str, float]:
    """Return what a logger would plot, by name; what is not known is left out.

    Names are those of TensorBoard and of the loggers of other frameworks: "headway/ratio" and so on.
    """
    now = read(handle)
    values = {
        "sent_mb": now.wire_bytes / 1e6,
        "saved": now.saved,
        "compress_s": now.compress_s,
        "wait_s": now.wait_s,
        "transfer_s": now.transfer_s,
        "latency_ms": 1e3 * now.latency_s,
        "bandwidth_mbps": now.bandwidth_bps / 1e6,
    }
    if isinstance(handle, HookState):
        values |= _latest_exchange(handle)
        values["switches"] = sum(decision.is_switch for decision in handle.history)
    return {f"headway/{name}": float(value) for name, value in values.items() if math.isfinite(value)}


def _read_hook(handle: HookState) -> Reading:
    totals = handle.statistics()
    network = handle.network
    link = {} if network is None else vars(network.estimate.link)
    return Reading(
        step=totals.step,
        **{name: _sum_over(totals.exchanges.values(), name) for name in SUMS},
        plan=describe(handle.plan),
        **link,
    )


def _sum_over(exchanges: Any, name: str) -> Any:
    values = [getattr(totals, name) for totals in exchanges]
    return math.fsum(values) if name.endswith(("_s", "_sum")) else sum(values)


def _read_gossip(optimizer: GossipOptimizer) -> Reading:
    said = optimizer.statistics()
    return Reading(
        step=said.step,
        wire_bytes=said.wire_bytes,
        dense_bytes=said.dense_bytes,
        compress_s=said.compress_s,
        wait_s=said.wait_s,
        transfer_s=said.exchange_s,
        plan=optimizer.description,
    )


def _latest_exchange(handle: HookState) -> dict[str, float]:
    """Return ratio and gain of the last exchange that was made."""
    records = handle.records
    return {"ratio": records[-1].ratio, "gain": records[-1].gain} if records else {}
