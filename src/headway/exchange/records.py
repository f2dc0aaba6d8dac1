"""Records of exchanges, and their totals."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, fields

from headway.network import CollectiveCost


@dataclass(frozen=True, kw_only=True)
class TimedCollective:
    """When a collective ran on this rank, and its cost by the model."""

    begun_at: float
    """On this rank's clock (`time.perf_counter`)."""
    ended_at: float
    cost: CollectiveCost


@dataclass(frozen=True, kw_only=True)
class ExchangeRecord:
    """One bucket, or one step where its buckets are fused, on one rank."""

    step: int
    bucket: int
    exchange: str
    algorithm: str
    """The algorithm of the collective that moved the values."""
    ratio: float
    """The share of entries sent: see `Plan.sent_ratio`."""
    wire_bytes: int
    """Sent by this rank."""
    dense_bytes: int
    """What a ring all-reduce of all entries would have sent: see `dense_bytes`."""
    rounds: float
    """The number of latencies on the critical path."""
    largest: TimedCollective
    """The collective that moved the most bytes."""
    was_alone: bool
    """Whether no other exchange ran at the same time."""
    compress_s: float
    wait_s: float
    """From the moment DDP handed the bucket over until its exchange began."""
    transfer_s: float
    """Time in collectives, waiting for late ranks included."""
    gain: float
    """1 - |G - sent|² / |G|² of this rank, at most 1; NaN where the exchange was rejected because of Inf or NaN."""


@dataclass(frozen=True, kw_only=True)
class Totals:
    """The records of one exchange, added up."""

    num_exchanges: int
    wire_bytes: int
    dense_bytes: int
    compress_s: float
    wait_s: float
    transfer_s: float
    ratio_sum: float
    gain_sum: float
    num_gains: int
    """The number of records whose gain is known."""

    @property
    def ratio(self) -> float:
        """The mean ratio."""
        return self.ratio_sum / self.num_exchanges

    @property
    def gain(self) -> float:
        """The mean gain, of those that are known; NaN if none is."""
        return self.gain_sum / self.num_gains if self.num_gains else math.nan

    @property
    def saved(self) -> float:
        """The share of dense traffic that was not sent."""
        return saved_share(self.wire_bytes, self.dense_bytes)


def dense_bytes(num_bytes: int, num_ranks: int) -> int:
    """Return the bytes that a rank sends in a ring all-reduce of a payload, with which savings are compared.

    >>> dense_bytes(400, 4)
    600
    """
    return 2 * (num_ranks - 1) * num_bytes // num_ranks


def saved_share(wire_bytes: float, dense_bytes: float) -> float:
    """Return the share of dense traffic that was not sent; 0 where there was none.

    >>> saved_share(25, 100), saved_share(0, 0)
    (0.75, 0.0)
    """
    return 1 - wire_bytes / dense_bytes if dense_bytes else 0.0


_FIELDS = tuple(field.name for field in fields(Totals))


class History:
    """The latest records, and totals of all by exchange, in bounded memory.

    Args:
        num_records: The number of records to keep.
    """

    def __init__(self, num_records: int = 10_000) -> None:
        self._records: deque[ExchangeRecord] = deque(maxlen=num_records)
        self._totals: dict[str, Totals] = {}

    def add(self, record: ExchangeRecord) -> None:
        """Add a record."""
        self._records.append(record)
        self._totals[record.exchange] = _plus(self._totals.get(record.exchange), record)

    @property
    def records(self) -> tuple[ExchangeRecord, ...]:
        """The latest records, oldest first."""
        return tuple(self._records)

    @property
    def totals(self) -> dict[str, Totals]:
        """Totals by exchange, since the beginning."""
        return dict(self._totals)


def _plus(totals: Totals | None, record: ExchangeRecord) -> Totals:
    before = totals or Totals(**dict.fromkeys(_FIELDS, 0))
    has_gain = not math.isnan(record.gain)
    return Totals(
        num_exchanges=before.num_exchanges + 1,
        wire_bytes=before.wire_bytes + record.wire_bytes,
        dense_bytes=before.dense_bytes + record.dense_bytes,
        compress_s=before.compress_s + record.compress_s,
        wait_s=before.wait_s + record.wait_s,
        transfer_s=before.transfer_s + record.transfer_s,
        ratio_sum=before.ratio_sum + record.ratio,
        gain_sum=before.gain_sum + (record.gain if has_gain else 0.0),
        num_gains=before.num_gains + has_gain,
    )
