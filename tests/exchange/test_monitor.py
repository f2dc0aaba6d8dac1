"""Councils about records: the same result on all ranks, at the same step, whatever their clocks say."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import pytest
import torch

from headway.collectives import Executor
from headway.collectives import council as council_module
from headway.exchange import ExchangeRecord, Monitor, NetworkView, TimedCollective
from headway.exchange import monitor as monitor_module
from headway.exchange.rhythm import delay_for
from headway.network import Calibration, CollectiveCost, Link

BEFORE, AFTER = Link(latency_s=0.0002, bandwidth_bps=1e9), Link(latency_s=0.0002, bandwidth_bps=1e8)
COST = CollectiveCost(latencies=2, path_bytes=10_000_000.0, overhead_s=0.003)
INTERVAL = 3


@dataclass
class Clock:
    """Stands in for the module `time`, on a rank whose clock is ahead."""

    ahead_s: float

    def perf_counter(self) -> float:
        return time.perf_counter() + self.ahead_s


def record_of(step: int, link: Link, rank: int, clock: Clock) -> ExchangeRecord:
    """An exchange for which rank 1 is late by a second; the others wait for it, and count that as transfer."""
    last_begun = step * 100.0 + clock.ahead_s
    begun = last_begun if rank == 1 else last_begun - 1.0
    largest = TimedCollective(begun_at=begun, ended_at=last_begun + COST.seconds(link), cost=COST)
    return ExchangeRecord(
        step=step,
        bucket=-1,
        exchange="dense",
        algorithm="ring",
        ratio=1.0,
        wire_bytes=1,
        dense_bytes=1,
        rounds=2,
        largest=largest,
        was_alone=True,
        compress_s=0.0,
        wait_s=0.0,
        transfer_s=largest.ended_at - begun,
        gain=1.0,
    )


def watch(num_steps: int, changes_at: int) -> list[tuple[bool, NetworkView]]:
    """Return what a rank knew at the beginning of each step, and whether a council was due then."""
    executor = Executor(timeout_s=20)
    clock = council_module.time = Clock(5000.0 * executor.rank)
    monitor_module.delay_for = lambda *_: 3  # these steps take no time
    monitor = Monitor(executor, Calibration(link=BEFORE), INTERVAL)
    monitor._is_odd = lambda _latency_s: False  # on a busy machine it may be, and the link is then learned anew
    seen, records = [], []
    try:
        for step in range(num_steps):
            monitor.finish(step)
            seen.append((monitor.is_due(step), monitor.view))
            if monitor.is_due(step) and not monitor.is_under_way:
                monitor.start(step, records)
                records = []
            records.append(record_of(step, AFTER if step >= changes_at else BEFORE, executor.rank, clock))
            monitor.end_step()
    finally:
        council_module.time, monitor_module.delay_for = time, delay_for
        monitor.close()
    return seen


@pytest.mark.pool
def test_all_ranks_know_the_same_at_every_step_and_nobody_counts_the_late_one(pool):
    first, *others = pool.run(watch, 40, 20, num_ranks=3)
    assert all(other == first for other in others)
    bandwidths = [view.estimate.link.bandwidth_bps for _, view in first]
    assert len(set(bandwidths[:6])) == 1 < len(set(bandwidths[:7]))  # the council of step 3 counts from step 6
    assert bandwidths[19] == pytest.approx(1e9, rel=0.05)
    assert bandwidths[-1] == pytest.approx(1e8, rel=0.1)


@pytest.mark.pool
def test_a_change_is_told_once_and_makes_councils_meet_more_often(pool):
    seen = pool.run(watch, 40, 20, num_ranks=2)[0]
    changes = [change for change in seen[-1][1].changes if change.what == "bandwidth"]
    assert len(changes) == 1
    assert changes[0].before.bandwidth_bps == pytest.approx(1e9, rel=0.1)
    due = [step for step, (is_due, _) in enumerate(seen) if is_due]
    assert set(range(3, 40, INTERVAL)) <= set(due)
    assert [step for step in due if step % INTERVAL and 20 < step < 30]


def test_the_link_in_force_follows_only_what_is_worth_it():
    monitor = Monitor.__new__(Monitor)
    estimate = monitor_module.Estimate(link=BEFORE, latency_error=0.1, bandwidth_error=0.1)
    monitor.view = NetworkView(estimate=estimate)
    near = Link(latency_s=BEFORE.latency_s * 1.05, bandwidth_bps=BEFORE.bandwidth_bps * 0.95)
    assert monitor.link_to_adopt(near) is near
    assert monitor.link_to_adopt(replace(near, bandwidth_bps=2e9)) is BEFORE
    assert monitor.link_to_adopt(replace(near, latency_s=0.0)) is BEFORE


def fail_in_council() -> str:
    executor = Executor(timeout_s=3)
    monitor = Monitor(executor, Calibration(link=BEFORE), 1)
    monitor._decide = lambda *_: 1 / 0
    try:
        monitor.start(1, [])
        monitor.end_step()
        monitor.finish(4)
    except ZeroDivisionError:
        return "failed"
    except Exception as error:
        return type(error).__name__
    finally:
        monitor.close()
    return "went on"


@pytest.mark.pool
def test_what_fails_in_a_council_is_raised_when_its_result_is_due(pool):
    assert pool.run(fail_in_council, num_ranks=3) == ["failed", "PeerLost", "PeerLost"]


def report_with_many_records() -> int:
    executor = Executor(timeout_s=20)
    monitor = Monitor(executor, Calibration(link=BEFORE), 1)
    heard: list[torch.Tensor] = []
    decide = monitor._decide
    monitor._decide = lambda step, *said: (heard.append(said), decide(step, *said))[1]
    clock = Clock(0.0)
    monitor.start(1, [record_of(step, BEFORE, executor.rank, clock) for step in range(100)])
    monitor.end_step()
    monitor.finish(4)
    monitor.close()
    return [record.step for record in heard[0][0]] if heard else []


@pytest.mark.pool
def test_a_report_has_the_latest_records_however_many_there_are(pool):
    assert pool.run(report_with_many_records, num_ranks=2) == [list(range(84, 100)), []]
