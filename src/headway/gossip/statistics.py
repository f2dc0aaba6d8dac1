"""What gossip has cost a rank so far."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GossipStatistics:
    """Totals of this rank, since it was wrapped; ``step`` also counts those before a resume."""

    step: int
    wire_bytes: int
    """Bytes sent to neighbours, headers included."""
    dense_bytes: int
    """Bytes that a ring all-reduce of every gradient would have sent."""
    compress_s: float
    """Making messages, while training waits."""
    wait_s: float
    """Waiting for neighbours, while training waits."""
    exchange_s: float
    """Sending, waiting and taking in, mostly while training goes on."""
    num_saturated: int
    """Entries that did not fit into a fixed-step quantiser's range."""

    @property
    def saved(self) -> float:
        """The share of dense traffic that was not sent."""
        return 1 - self.wire_bytes / self.dense_bytes if self.dense_bytes else 0.0

    def __str__(self) -> str:
        return (
            f"step {self.step}: {self.wire_bytes:,} bytes sent, where an all-reduce would send {self.dense_bytes:,}; "
            f"compress {self.compress_s:.2f} s, wait {self.wait_s:.2f} s, exchange {self.exchange_s:.2f} s"
        )


@dataclass
class Meter:
    """Counts as training goes on."""

    num_steps: int = 0
    wire_bytes: int = 0
    compress_s: float = 0.0
    wait_s: float = 0.0
    exchange_s: float = 0.0
    num_saturated: int = 0

    @contextmanager
    def compressing(self) -> Iterator[None]:
        """Count the time as compression."""
        start = time.perf_counter()
        yield
        self.compress_s += time.perf_counter() - start

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time as waiting."""
        start = time.perf_counter()
        yield
        self.wait_s += time.perf_counter() - start

    def read(self, step: int, num_ranks: int, numel: int) -> GossipStatistics:
        """Return the totals."""
        counted = vars(self).copy()
        dense_bytes = counted.pop("num_steps") * round(2 * (num_ranks - 1) / num_ranks * 4 * numel)
        return GossipStatistics(step=step, dense_bytes=dense_bytes, **counted)
