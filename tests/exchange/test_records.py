"""Records and totals."""

from __future__ import annotations

import math

import pytest

from headway.exchange import ExchangeRecord, History, TimedCollective
from headway.network import CollectiveCost

COST = CollectiveCost(latencies=2, path_bytes=1000.0, overhead_s=0.001)


def record(step: int, exchange: str = "dense", gain: float = 0.5, wire_bytes: int = 10) -> ExchangeRecord:
    return ExchangeRecord(
        step=step,
        bucket=0,
        exchange=exchange,
        algorithm="ring",
        ratio=0.1,
        wire_bytes=wire_bytes,
        dense_bytes=100,
        rounds=2,
        largest=TimedCollective(begun_at=1.0, ended_at=3.0, cost=COST),
        was_alone=True,
        compress_s=1.0,
        wait_s=0.5,
        transfer_s=2.0,
        gain=gain,
    )


def test_totals_are_by_exchange_and_outlive_records():
    history = History(num_records=3)
    for step in range(10):
        history.add(record(step, gain=step / 10))
    history.add(record(10, exchange="star_topk"))
    assert [r.step for r in history.records] == [8, 9, 10]
    totals = history.totals
    assert set(totals) == {"dense", "star_topk"}
    assert (totals["dense"].num_exchanges, totals["dense"].wire_bytes) == (10, 100)
    assert totals["dense"].gain == pytest.approx(0.45)
    assert totals["dense"].saved == pytest.approx(0.9)
    assert totals["dense"].transfer_s == pytest.approx(20)


def test_an_unknown_gain_does_not_spoil_the_mean():
    history = History()
    for step, gain in enumerate([math.nan, math.nan, 0.5, math.nan, 0.7]):
        history.add(record(step, gain=gain))
    assert history.totals["dense"].gain == pytest.approx(0.6)
