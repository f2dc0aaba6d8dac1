"""What each run of an exchange leaves behind, and what that adds up to."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, fields

from headway.network import CollectiveCost


@dataclass(frozen=True, kw_only=True)
class TimedCollective:
    """When a collective ran on this rank, and what the cost model takes it to be made of."""

    begun_at: float
    """By this rank's `time.perf_counter`."""
    ended_at: float
    cost: CollectiveCost


@dataclass(frozen=True, kw_only=True)
class ExchangeRecord:
    """One bucket, or one step where its buckets are fused, on one rank."""

    step: int
    bucket: int
    exchange: str
    algorithm: str
    """Of the collective that moved the values."""
    ratio: float
    """The share of entries sent; 1 for dense and quantized."""
    wire_bytes: int
    """Sent by this rank."""
    dense_bytes: int
    """What this rank would have sent for the same bucket by a ring all-reduce of all entries."""
    rounds: float
    """How often latency was paid."""
    largest: TimedCollective
    """The one of its collectives that moved most."""
    was_alone: bool
    """Whether no other exchange was under way."""
    compress_s: float
    wait_s: float
    """From the moment DDP handed the bucket over until its exchange began."""
    transfer_s: float
    """In collectives, waiting for late ranks included."""
    gain: float
    """|sent|² / |G|² of this rank; NaN where Inf or NaN was among what a top-k exchange sent."""


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
    """How many records know their gain."""

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
        return 1 - self.wire_bytes / self.dense_bytes if self.dense_bytes else 0.0


_FIELDS = tuple(field.name for field in fields(Totals))


class History:
    """The latest records, and totals of all by exchange, in bounded memory.

    Args:
        num_records: How many records to keep.
    """

    def __init__(self, num_records: int = 10_000) -> None:
        self._records: deque[ExchangeRecord] = deque(maxlen=num_records)
        self._totals: dict[str, Totals] = {}
        self._num_unread = 0

    def add(self, record: ExchangeRecord) -> None:
        """Take a record in."""
        self._records.append(record)
        self._num_unread = min(self._num_unread + 1, self._records.maxlen or 0)
        self._totals[record.exchange] = _plus(self._totals.get(record.exchange), record)

    @property
    def records(self) -> tuple[ExchangeRecord, ...]:
        """The latest, oldest first."""
        return tuple(self._records)

    def unread(self) -> tuple[ExchangeRecord, ...]:
        """Return those added since the last call, oldest first."""
        num_unread, self._num_unread = self._num_unread, 0
        return self.records[len(self._records) - num_unread :]

    @property
    def totals(self) -> dict[str, Totals]:
        """By exchange, since the beginning."""
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
