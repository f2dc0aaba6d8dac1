"""What a run has cost and saved so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headway.exchange import Totals, saved_share


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Totals of this rank, by exchange and over all."""

    step: int
    """How many steps have been averaged."""
    exchanges: Mapping[str, Totals]
    steps_per_exchange: float = 1.0
    """More than one with local steps."""

    @property
    def wire_bytes(self) -> int:
        """Bytes sent."""
        return sum(totals.wire_bytes for totals in self.exchanges.values())

    @property
    def dense_bytes(self) -> int:
        """Bytes that ring all-reduces of everything, at every step, would have sent."""
        return round(self.steps_per_exchange * sum(totals.dense_bytes for totals in self.exchanges.values()))

    @property
    def saved(self) -> float:
        """The share of dense traffic that was not sent."""
        return saved_share(self.wire_bytes, self.dense_bytes)

    @property
    def seconds(self) -> Mapping[str, float]:
        """Where the time went: compress, wait, transfer."""
        return {
            name: math.fsum(getattr(totals, f"{name}_s") for totals in self.exchanges.values())
            for name in ("compress", "wait", "transfer")
        }

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.seconds.items())
        return (
            f"step {self.step}: {self.wire_bytes:,} of {self.dense_bytes:,} bytes sent, {self.saved:.1%} saved; {parts}"
        )
