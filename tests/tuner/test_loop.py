"""The whole control loop in virtual time, up to 64 ranks: records in, plans out, no sockets and no waiting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.errors import MessageError
from headway.exchange import PLAIN, CostModel, Plan
from headway.network import MOST_CHANGES, Calibration, Link
from headway.tuner import ControlLoop, FusionChooser, LinkTracker, LoopConfig, Pace
from tests.tuner.virtual_run import ARRIVALS_S, FAR, GOOD, NARROW, SHAPES, VirtualRun, VirtualTransport


def test_64_ranks_follow_a_link_that_they_must_estimate():
    """Bandwidth falls by 25 at step 40: it is seen in the transfers, decided on rank 0, and followed by all at once."""
    run = VirtualRun(64, lambda step: GOOD if step < 40 else NARROW, knows_link=False, jitter=0.05, interval=10)
    run.play(80)
    assert all(len(set(plans)) == 1 for plans in run.plans)
    assert all(rank.decisions[-1].words == run.ranks[0].decisions[-1].words for rank in run.ranks)
    assert all(rank.view == run.ranks[0].view for rank in run.ranks)
    estimate = run.ranks[0].view.estimate.link
    assert estimate.bandwidth_bps == pytest.approx(NARROW.bandwidth_bps, rel=0.1)
    assert [change.what for change in run.ranks[0].view.changes] == ["bandwidth"]
    fall = next(each for each in run.ranks[0].decisions if each.cause == "bandwidth")
    assert 40 < fall.step <= 52
    assert run.plans[79][0].sent_ratio < run.plans[39][0].sent_ratio


def test_noise_alone_is_not_taken_for_a_change():
    run = VirtualRun(8, knows_link=False, jitter=0.1, interval=10).play(300)
    assert run.ranks[0].view.changes == ()


def test_a_latency_that_rises_is_learned_from_the_control_rounds():
    run = VirtualRun(8, lambda step: NARROW if step < 40 else FAR, knows_link=False, interval=10).play(80)
    assert run.ranks[0].view.estimate.link.latency_s == pytest.approx(FAR.latency_s, rel=0.1)
    assert "latency" in {change.what for change in run.ranks[0].view.changes}


def test_the_first_decision_takes_the_road_of_all_others():
    """It is the answer of a control round to which every rank has reported, and holds in the same step."""
    run = VirtualRun(5).play(3)
    assert [round_.held_at for round_ in run.rounds] == [0]
    assert len(run.rounds[0].requests) == 5
    first = run.ranks[0].decisions[0]
    assert (first.step, first.cause) == (0, "start")
    assert run.plans[0][0] == first.plan


def test_the_slowest_rank_counts_in_the_first_decision_too():
    run = VirtualRun(4, own_s=lambda _step, rank: 2.0 if rank == 3 else 0.1).play(3)
    assert run.ranks[0].decisions[0].own_s == pytest.approx(2.0)


def test_the_link_in_force_follows_the_estimate_only_where_it_moves_much():
    slightly = Link(latency_s=GOOD.latency_s, bandwidth_bps=0.93 * GOOD.bandwidth_bps)
    run = VirtualRun(3, lambda step: GOOD if step < 20 else slightly if step < 40 else NARROW).play(60)
    assert run.ranks[0].view.estimate.link == NARROW
    assert all(rank.link == NARROW for rank in run.ranks)
    steady = VirtualRun(3, lambda step: GOOD if step < 20 else slightly).play(40)
    assert steady.ranks[0].view.estimate.link == slightly
    assert all(rank.link == GOOD for rank in steady.ranks)


def test_gain_curves_are_taken_only_where_plans_are_chosen_by_gain():
    (loop,) = fixed_loops(1, Plan(exchange="star_topk", fusion="step"), interval=3)
    measured = []
    for step in range(3):
        loop.begin_step(step)
        measured.append(loop.current.is_measured)
        assert not loop.current.takes_curves
        loop.end_step(0.0)
    assert measured == [False, False, True]
    (rank, *_) = VirtualRun(2).ranks
    rank.begin_step(0)
    assert rank.current.takes_curves


def test_a_malformed_report_names_the_rank():
    run = VirtualRun(3).play(3)
    run.step = 3
    for rank in run.ranks:
        rank.begin_step(3)
    run.rounds[-1].requests[2].report[0] = 99.0
    with pytest.raises(MessageError, match=r"message from rank 2: 99\.0 is not an index"):
        run.ranks[0].finish_round()


def test_measured_steps_come_before_thorough_rounds():
    run = VirtualRun(2, interval=10)
    measured = []
    for step in range(40):
        run.play(1)
        measured += [step] if run.ranks[1].current.is_measured else []
    thorough = [round_.held_at for round_ in run.rounds if round_.requests[0].num_pings > 2]
    assert set(measured) <= {step - 1 for step in thorough}
    assert len(measured) > 1


def test_only_the_latest_changes_of_the_network_are_kept():
    run = VirtualRun(2, lambda step: GOOD if step // 6 % 2 else FAR).play(6 * MOST_CHANGES + 60)
    changes = run.ranks[1].view.changes
    assert len(changes) == MOST_CHANGES
    assert {change.after for change in changes[-2:]} == {GOOD, FAR}


def test_after_a_resume_the_loop_starts_over_from_that_step():
    run = VirtualRun(3, lambda _: FAR).play(20)
    plan = run.ranks[0].plan
    for rank in run.ranks:
        rank.finish_round()
        rank.resume(100, *rank.place_of(vars(plan)), NARROW)
        assert (rank.plan, rank.link) == (plan, NARROW)
        assert rank.current.awaits_buckets
    run.step, run.knows_buckets = 100, False
    run.play(1)
    assert {rank.link for rank in run.ranks} == {NARROW}  # the first choice does not give it up
    assert not run.ranks[0].current.awaits_buckets
    run.play(9)
    later = [round_.held_at for round_ in run.rounds if round_.held_at >= 100]
    assert later == [100, 103, 106, 109]
    assert {rank.link for rank in run.ranks} == {FAR}  # but the next control rounds do


def test_a_plan_of_an_earlier_run_that_is_no_longer_there_is_reported():
    rank = VirtualRun(2).ranks[0]
    with pytest.warns(UserWarning, match="not one to choose from"):
        assert rank.place_of({**vars(PLAIN), "ratio": 0.7})[0] == -1
    assert rank.place_of(None) == (-1, Pace())
    rank.resume(5, -1)
    assert rank.plan == PLAIN


def fixed_loops(num_ranks: int, plan: Plan, interval: int) -> list[ControlLoop]:
    run = VirtualRun(num_ranks)
    costs = CostModel(num_ranks, Calibration(link=GOOD))
    plans = [replace(plan, fusion=fusion) for fusion in ("bucket", "step")] if plan.fusion == "auto" else [plan]
    config = LoopConfig(first=plan, plans=plans, interval=interval, is_adaptive=False)
    return [
        ControlLoop(
            config,
            costs,
            VirtualTransport(rank, run),
            LinkTracker(costs.calibration),
            FusionChooser(plans, costs) if rank == 0 else None,
        )
        for rank in range(num_ranks)
    ]


def test_a_fixed_plan_decides_its_fusion_in_the_same_way_and_makes_no_decisions():
    loops = fixed_loops(3, Plan(exchange="star_topk", fusion="auto"), interval=0)
    for loop in loops:
        loop.begin_step(2)
        loop.set_buckets(SHAPES, ARRIVALS_S)
    for loop in loops:
        loop.await_plan()
    assert [loop.plan.fusion for loop in loops] == ["bucket"] * 3  # the first bucket overlaps with backward
    assert all(loop.decisions == () for loop in loops)


def test_a_link_that_is_given_stays_in_force_whatever_control_rounds_would_measure():
    """Nor does the saved link of a resumed run give way, if no control rounds follow it."""
    loops = fixed_loops(2, Plan(exchange="star_topk", fusion="auto"), interval=0)
    for loop in loops:
        loop.resume(5, link=FAR)
        loop.begin_step(5)
        loop.set_buckets(SHAPES, ARRIVALS_S)
    for loop in loops:
        loop.await_plan()
        assert loop.link == FAR


def test_a_fixed_plan_with_nothing_open_holds_no_rounds_without_an_interval():
    (loop,) = fixed_loops(1, Plan(exchange="star_topk", fusion="step"), interval=0)
    for step in range(40):
        loop.begin_step(step)
        if step == 2:
            loop.set_buckets(SHAPES, ARRIVALS_S)
            loop.await_plan()
        loop.end_step(0.0)
    assert loop.plan.fusion == "step"
    assert not loop.is_following
