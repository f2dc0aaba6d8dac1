"""What ranks report of their steps, and what all reports come to."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headway.exchange import CodeGain, ExchangeRecord, GainCurves, TimedCollective
from headway.kernels import GAIN_RATIOS, GainCurve
from headway.network import CollectiveCost
from headway.tuner import StepReport
from headway.tuner.step_reports import StepObserver

COST = CollectiveCost(latencies=1, path_bytes=1.0, overhead_s=0.0)


def record(step: int, gain: float, dense_bytes: int = 1) -> ExchangeRecord:
    return ExchangeRecord(
        step=step,
        bucket=0,
        exchange="allgather_topk",
        algorithm="ring",
        ratio=0.1,
        wire_bytes=1,
        dense_bytes=dense_bytes,
        rounds=1,
        largest=TimedCollective(begun_at=0.0, ended_at=1.0, cost=COST),
        was_alone=True,
        compress_s=0.0,
        wait_s=0.0,
        transfer_s=1.0,
        gain=gain,
    )


def curve(gain: float, energy: float) -> GainCurve:
    return GainCurve(gains=np.full(len(GAIN_RATIOS), gain), energy=energy)


def test_times_are_medians_and_measured_exchanges_do_not_count():
    observer = StepObserver()
    for own_s, exposed_s in ((1.0, 0.5), (3.0, math.nan), (1.2, 0.7), (1.1, 0.6)):
        observer.observe_step(own_s, exposed_s)
    report = observer.report([])
    assert report.own_s == pytest.approx(1.15)
    assert report.exposed_s == pytest.approx(0.6)


def test_a_switch_forgets_the_times_of_the_plan_before_and_waits_for_its_gain():
    observer = StepObserver()
    observer.observe_step(1.0, 5.0)
    observer.observe_switch(10)
    for exposed_s in (9.0, 9.0, 0.2):  # two steps settle
        observer.observe_step(1.0, exposed_s)
    report = observer.report([record(12, 0.9), record(18, 0.3), record(19, math.nan)])
    assert report.exposed_s == pytest.approx(0.2)
    assert report.realised_gain == pytest.approx(0.3)


def test_buckets_weigh_by_what_they_hold():
    observer = StepObserver()
    observer.curves += [GainCurves(curve(0.2, 3.0), curve(0.4, 1.0)), GainCurves(curve(0.6, 1.0), curve(0.8, 3.0))]
    report = observer.report([record(20, 0.1, dense_bytes=3), record(20, 0.5, dense_bytes=1)])
    assert report.curve[0] == pytest.approx(0.3)
    assert report.total_curve[0] == pytest.approx(0.7)
    assert report.realised_gain == pytest.approx(0.2)
    assert not observer.report([]).has_curve  # reported once


def test_the_gains_of_codes_weigh_by_what_buckets_hold_and_ranks_alike():
    observer = StepObserver()
    for gain, energy in ((0.2, 3.0), (0.6, 1.0), (math.nan, 1.0)):
        each = curve(0.5, energy)
        observer.curves.append(GainCurves(each, each, (CodeGain(8, 1.0), CodeGain(4, gain))))
    report = observer.report([])
    assert report.code_gains == ((8, 1.0), (4, pytest.approx(0.3)))
    unknown = StepReport(own_s=1.0, exposed_s=1.0, realised_gain=1.0)
    other = StepReport(own_s=1.0, exposed_s=1.0, realised_gain=1.0, code_gains=(CodeGain(4, 0.5),))
    combined = StepReport.combined([report, unknown, other])
    assert dict(combined.code_gains) == {8: 1.0, 4: pytest.approx(0.4)}


def test_a_gradient_that_is_not_finite_gives_no_curve():
    observer = StepObserver()
    observer.curves.append(GainCurves(curve(0.2, math.inf), curve(0.2, math.inf)))
    assert not observer.report([]).has_curve


def test_the_slowest_rank_sets_the_pace_and_its_exchange_waits_for_no_other():
    curves = {"curve": (0.2,) * len(GAIN_RATIOS), "total_curve": (0.4,) * len(GAIN_RATIOS)}
    combined = StepReport.combined(
        [
            StepReport(own_s=1.0, exposed_s=2.0, realised_gain=0.2, **curves),
            StepReport(own_s=3.0, exposed_s=0.1, realised_gain=0.4),
            StepReport(own_s=math.nan, exposed_s=math.nan, realised_gain=math.nan),
        ]
    )
    assert (combined.own_s, combined.exposed_s) == (3.0, 0.1)
    assert combined.realised_gain == pytest.approx(0.3)
    assert combined.curve == pytest.approx(curves["curve"])


def test_without_any_report_nothing_is_known():
    combined = StepReport.combined([])
    assert math.isnan(combined.own_s)
    assert not combined.has_curve
