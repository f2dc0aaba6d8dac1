"""From reports of ranks to observations of the link."""

from __future__ import annotations

import pytest
import torch

from headway.collectives import RankReports
from headway.exchange import ExchangeRecord, TimedCollective
from headway.network import Calibration, CollectiveCost, Link
from headway.tuner import GivenLink, LinkTracker
from headway.tuner.link_tracker import BRIEF_PINGS, durations_on_network
from headway.tuner.messages import Report, Span

LINK = Link(latency_s=0.02, bandwidth_bps=1e8)
COST = CollectiveCost(latencies=2, path_bytes=1e6, overhead_s=0.003)


def record(seconds: float, algorithm: str = "ring") -> ExchangeRecord:
    return ExchangeRecord(
        step=0,
        bucket=-1,
        exchange="dense",
        algorithm=algorithm,
        ratio=1.0,
        wire_bytes=1,
        dense_bytes=1,
        rounds=2,
        largest=TimedCollective(begun_at=0.0, ended_at=seconds, cost=COST),
        was_alone=True,
        compress_s=0.0,
        wait_s=0.0,
        transfer_s=seconds,
        gain=1.0,
    )


def gathered(latency_s: float = LINK.latency_s, num_pings: int = 3) -> RankReports:
    return RankReports(
        reports=torch.zeros(2, 0), latencies_s=[0.0, latency_s], offsets_s=[0.0, 500.0], num_pings=num_pings
    )


def reports(*seconds: float) -> list[Report]:
    """Rank 1 is ahead by 500 s on its clock, and a second late for every exchange."""
    first = Report(spans=tuple(Span(10.0 * i, 10.0 * i + 1 + s) for i, s in enumerate(seconds)))
    late = Report(spans=tuple(Span(510.0 + 10 * i - 9, 510.0 + 10 * i - 9 + s) for i, s in enumerate(seconds)))
    return [first, late]


def observe(tracker: LinkTracker, num_rounds: int, link: Link):
    seconds, changes = COST.seconds(link), []
    for _ in range(num_rounds):
        changes += tracker.observe([record(seconds)] * 3, reports(*[seconds] * 3), gathered(link.latency_s))
    return changes


def test_a_given_link_is_not_measured():
    tracker = GivenLink(LINK)
    assert (tracker.num_pings(is_thorough=True), tracker.reconsider_pings(9.0, is_thorough=True)) == (1, 0)
    assert tracker.observe([record(9.0)], reports(9.0), gathered(9.0)) == []
    assert tracker.estimate.link == tracker.usual == LINK


def test_neither_late_ranks_nor_clocks_count():
    assert durations_on_network(reports(0.25, 0.5), [0.0, 500.0]) == pytest.approx([0.25, 0.5])


def test_ranks_that_report_fewer_exchanges_limit_what_is_known():
    few = [*reports(0.25, 0.5)[:1], Report(spans=(Span(501.0, 501.25),))]
    assert len(durations_on_network(few, [0.0, 500.0])) == 1


def test_a_steady_link_gives_no_change_and_a_fall_of_bandwidth_one():
    tracker = LinkTracker(Calibration(link=LINK))
    assert observe(tracker, 20, LINK) == []
    slower = Link(latency_s=LINK.latency_s, bandwidth_bps=2e7)
    changes = observe(tracker, 10, slower)
    assert [change.what for change in changes] == ["bandwidth"]
    assert tracker.estimate.link.bandwidth_bps == pytest.approx(2e7, rel=0.1)


def test_an_unusual_latency_is_believed_after_two_rounds():
    tracker = LinkTracker(Calibration(link=LINK))
    observe(tracker, 20, LINK)
    idle = reports()
    assert tracker.observe([], idle, gathered(0.08)) == []
    assert tracker.is_suspicious
    assert [change.what for change in tracker.observe([], idle, gathered(0.08))] == ["latency"]
    assert tracker.estimate.link.latency_s == pytest.approx(0.08, rel=0.1)


def test_brief_rounds_do_not_measure_the_latency_unless_it_is_unusual():
    tracker = LinkTracker(Calibration(link=LINK))
    assert tracker.num_pings(is_thorough=False) == BRIEF_PINGS < tracker.num_pings(is_thorough=True)
    assert tracker.reconsider_pings(LINK.latency_s, is_thorough=False) == 0
    assert tracker.reconsider_pings(3 * LINK.latency_s, is_thorough=False) > BRIEF_PINGS
    before = tracker.estimate.link.latency_s
    tracker.observe([], reports(), gathered(0.5, num_pings=BRIEF_PINGS))
    assert tracker.estimate.link.latency_s == before


def test_another_kind_of_traffic_is_no_change_of_the_network():
    """The cost model may fit another algorithm worse: that must not look like a change of bandwidth."""
    tracker = LinkTracker(Calibration(link=LINK))
    observe(tracker, 20, LINK)
    seconds = 1.3 * COST.seconds(LINK)
    changes = []
    for _ in range(10):
        changes += tracker.observe([record(seconds, "tree")] * 2, reports(seconds, seconds), gathered())
    assert changes == []
