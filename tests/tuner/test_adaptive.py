"""The adaptive choice in virtual time: what happens when link, gradients or pace change, and when nothing does."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from headway.exchange import PLAIN, Plan
from headway.network import Link
from headway.tuner import Front, Goodput
from tests.tuner.virtual_run import FAR, GOOD, NARROW, VirtualRun, steep


def falls_at(step: int, before: Link, after: Link):
    return lambda now: after if now >= step else before


@pytest.mark.parametrize("num_ranks", [2, 5])
def test_all_ranks_follow_the_same_plan_at_the_same_step(num_ranks):
    run = VirtualRun(num_ranks, falls_at(30, GOOD, FAR), warm_up=2).play(60)
    assert all(len(set(plans)) == 1 for plans in run.plans)
    assert len({plans[0] for plans in run.plans}) >= 3
    first, *others = ([decision.words for decision in rank.decisions] for rank in run.ranks)
    assert all(other == first for other in others)


def test_a_bandwidth_that_falls_is_answered_at_the_next_council():
    run = VirtualRun(4, falls_at(30, GOOD, NARROW)).play(60)
    decision = next(each for each in run.ranks[0].decisions if each.step > 30)
    assert (decision.step, decision.cause) == (33, "bandwidth")
    assert decision.is_switch
    assert decision.plan.sent_ratio < decision.before.sent_ratio
    assert decision.step_s < decision.step_s_before
    assert run.plans[32][0] == decision.before
    assert run.plans[33][0] == decision.plan


def test_when_it_rises_again_more_is_sent_again():
    run = VirtualRun(4, lambda step: NARROW if 30 <= step < 60 else GOOD, policy=Goodput(exponent=0.5)).play(90)
    assert run.plans[29][0].sent_ratio > 2 * run.plans[50][0].sent_ratio
    assert run.plans[80][0].sent_ratio > 2 * run.plans[50][0].sent_ratio


def test_a_calm_network_gives_no_decisions_after_plain_sums_were_tried():
    run = VirtualRun(4).play(300)
    assert [decision.cause for decision in run.ranks[0].decisions] == ["start", "start"]
    assert [decision.step for decision in run.ranks[0].decisions] == [0, 6]
    assert {plans[0] for plans in run.plans[:6]} == {PLAIN}
    assert run.plans[6][0] != PLAIN


@pytest.mark.parametrize("link", [FAR, NARROW])
def test_where_plain_sums_are_expensive_the_first_step_is_compressed(link):
    run = VirtualRun(4, lambda _: link).play(30)
    assert run.plans[0][0].sent_ratio <= 0.1
    assert PLAIN not in {plans[0] for plans in run.plans}


@pytest.mark.parametrize(
    ("seed", "policy"), [(0, "balanced"), (1, "balanced"), (0, "fast"), (1, "accurate"), (0, "goodput"), (1, "knee")]
)
def test_noise_does_not_make_it_flap(seed, policy):
    """Link, gradients and pace are all off by up to 8%, at random, in every step."""
    source = random.Random(seed)
    noise = [1 + source.uniform(-0.08, 0.08) for _ in range(1000)]
    run = VirtualRun(
        4,
        lambda step: Link(latency_s=0.02 * noise[step], bandwidth_bps=1e8 * noise[step + 300]),
        gain_at=lambda step, ratio, _: min(1.0, (ratio / 0.1) ** 0.6 * noise[step + 600]),
        own_s=lambda step, rank: 0.1 * noise[step + rank],
        policy=policy,
    ).play(300)
    assert len(run.switches) <= 6
    assert len([step for step in run.switches if step > 60]) <= 2


def test_a_link_that_swings_between_two_is_followed_but_small_swings_are_not():
    def swing(step: int) -> Link:
        return Link(latency_s=0.02, bandwidth_bps=1e8 * (1.03 if step // 6 % 2 else 1))

    large = VirtualRun(4, lambda step: GOOD if step // 30 % 2 else FAR, policy=Goodput(exponent=0.5)).play(200)
    small = VirtualRun(4, swing, policy=Goodput(exponent=0.5)).play(200)
    assert len(large.switches) >= 5
    assert len(small.switches) <= 2


def test_gradients_that_spread_out_are_answered():
    """From 30 on the largest entries hold less: more of them have to be sent."""

    def gain_at(step: int, ratio: float, _: float) -> float:
        return min(1.0, (ratio / 0.1) ** (0.3 if step < 30 else 1.2))

    flat = VirtualRun(4, lambda _: Link(latency_s=0.001, bandwidth_bps=5e6), gain_at).play(90)
    causes = [decision.cause for decision in flat.ranks[0].decisions if decision.is_switch]
    assert "gain" in causes
    assert flat.plans[-1][0].sent_ratio > flat.plans[29][0].sent_ratio


def test_a_slower_rank_sets_the_pace_and_lets_more_be_sent():
    def own_s(step: int, rank: int) -> float:
        return 3.0 if rank == 2 and step >= 30 else 0.1

    run = VirtualRun(4, lambda _: FAR, own_s=own_s, policy=Goodput(exponent=0.5)).play(90)
    assert "pace" in {decision.cause for decision in run.ranks[0].decisions}
    assert run.ranks[0].decisions[-1].own_s == pytest.approx(3.0)
    assert run.plans[-1][0].sent_ratio > 1.3 * run.plans[29][0].sent_ratio


def test_plans_that_take_longer_than_foretold_are_left_for_others():
    run = VirtualRun(4, lambda _: NARROW, slowness=lambda plan: 3.0 if plan.algorithm == "one_shot" else 1.0).play(60)
    assert run.plans[3][0].algorithm == "one_shot"  # before anything is known
    assert run.plans[-1][0].algorithm != "one_shot"
    assert len(run.switches) <= 8


def test_plain_sums_are_taken_to_take_what_they_took():
    """They are much faster than foretold: that is known from the first steps, and not forgotten for others."""
    run = VirtualRun(4, lambda _: GOOD, slowness=lambda plan: 0.1 if plan.exchange == "dense" else 1.0).play(60)
    plan = run.plans[-1][0]
    assert (plan.exchange, plan.algorithm) == ("dense", "native")


def test_what_moved_is_what_has_moved():
    def link_at(step: int) -> Link:  # latency is noticed, but it was bandwidth
        return GOOD if step < 30 else Link(latency_s=GOOD.latency_s * 1.01, bandwidth_bps=1e7)

    run = VirtualRun(4, link_at, detected="latency").play(60)
    words = [decision.words for decision in run.ranks[0].decisions if decision.step > 30]
    assert "bandwidth fell from 1e+03 to 10 Mbps" in words[0]


def test_what_all_plans_are_off_by_changes_little_and_not_for_long():
    plain, slow = (VirtualRun(4, lambda _: FAR, slowness=lambda _, f=factor: f).play(90) for factor in (1.0, 2.0))
    assert len(slow.switches) <= len(plain.switches) + 3
    assert max(slow.switches) < 30
    assert slow.ranks[0].decisions[-1].plan.exchange == plain.ranks[0].decisions[-1].plan.exchange


def test_the_warm_up_starts_large_and_comes_down():
    run = VirtualRun(4, lambda _: FAR, warm_up=2, policy="fast").play(200)
    ratios = [plans[0].sent_ratio for plans in run.plans]
    decisions = run.ranks[0].decisions
    for decision in decisions:
        assert decision.gain >= min(0.5, 2 / (decision.step + 1)) or decision.plan.sent_ratio >= 0.1
    assert ratios[0] > 0.03
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] < 0.005
    later = [decision for decision in decisions if decision.step]
    assert {decision.cause for decision in later} == {"warm-up"}
    assert "the warm-up allows smaller ratios" in later[0].words
    assert len(later) >= 3


@pytest.mark.parametrize("seed", [0, 1])
def test_noisy_gains_do_not_send_the_warm_up_back(seed):
    """Gains are off by up to 20%, at random, in every step."""
    source = random.Random(seed)
    noise = [1 + source.uniform(-0.2, 0.2) for _ in range(200)]
    run = VirtualRun(
        4, lambda _: FAR, lambda step, c, _: min(1.0, steep(c) * noise[step]), warm_up=2, policy="fast"
    ).play(200)
    ratios = [plans[0].sent_ratio for plans in run.plans]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] < 0.005
    assert {each.cause for each in run.ranks[0].decisions} == {"start", "warm-up"}


def test_heavy_tailed_gradients_end_the_warm_up_earlier():
    def first_step_below(ratio: float, exponent: float) -> int:
        run = VirtualRun(
            4, lambda _: FAR, lambda _, c, __: min(1.0, (c / 0.1) ** exponent), warm_up=2, policy="fast", interval=3
        ).play(120)
        return next(step for step, plans in enumerate(run.plans) if plans[0].sent_ratio < ratio)

    assert first_step_below(0.02, 0.3) < first_step_below(0.02, 1.2) - 5


def test_a_run_that_is_resumed_late_is_past_its_warm_up():
    fresh, resumed = (VirtualRun(4, lambda _: FAR, warm_up=2, policy="fast") for _ in range(2))
    resumed.step = resumed.held_at = 1000
    assert resumed.play(1).plans[0][0].sent_ratio < 0.005 < 0.03 < fresh.play(1).plans[0][0].sent_ratio


def test_what_was_allowed_all_the_time_is_not_put_down_to_the_warm_up():
    """Computing gets much slower at step 30, and then more entries cost little."""
    run = VirtualRun(4, lambda _: FAR, own_s=lambda step, _: 0.1 if step < 30 else 30.0, warm_up=1)
    decisions = run.play(60).ranks[0].decisions
    rises = [each for each in decisions if each.is_switch and each.gain > 1.1 * each.gain_before]
    assert rises
    assert all(each.step > 30 and each.cause == "pace" for each in rises)
    assert {each.cause for each in decisions if 0 < each.step < 30} == {"warm-up"}


def test_a_link_that_changes_during_the_warm_up_is_the_cause_of_the_answer():
    slower = Link(latency_s=FAR.latency_s, bandwidth_bps=FAR.bandwidth_bps / 10)
    decisions = VirtualRun(4, falls_at(30, FAR, slower), warm_up=2, policy="fast").play(60).ranks[0].decisions
    answer = next(each for each in decisions if each.step > 30)
    assert answer.cause == "bandwidth"
    chosen_at = max(each.step for each in decisions if each.step < 30)
    assert answer.gain < 2 / (chosen_at + 1)  # the warm-up has allowed it since


def test_where_nothing_beats_plain_ddp_it_is_what_is_done():
    near = Link(latency_s=2e-5, bandwidth_bps=2e10)
    run = VirtualRun(2, lambda _: near).play(30)
    plan = run.plans[-1][0]
    assert (plan.exchange, plan.algorithm, plan.values, plan.fusion) == ("dense", "native", "fp32", "bucket")


@pytest.mark.parametrize("policy", ["balanced", "fast", "accurate", "goodput", "knee"])
def test_every_policy_gives_a_plan_on_every_link(policy):
    for link in (GOOD, NARROW, FAR):
        run = VirtualRun(4, lambda _, link=link: link, policy=policy).play(12)
        assert len(run.switches) <= 2
        assert all(len(set(plans)) == 1 for plans in run.plans)


def test_a_policy_of_ones_own_decides():
    def most_bytes(front: Front) -> np.ndarray:
        return np.array([plan.ratio if plan.description.uses_ratio else 1e-3 for plan in front.plans])

    run = VirtualRun(4, lambda _: NARROW, policy=most_bytes).play(12)
    assert run.plans[-1][0].sent_ratio == pytest.approx(0.1)


@pytest.mark.parametrize(
    "scores", [lambda front: [1.0], lambda front: [float("nan")] * len(front), lambda front: [-1.0] * len(front)]
)
def test_a_policy_that_gives_no_scores_is_told_so(scores):
    with pytest.raises(ValueError, match=r"(?s)the policy gave .* a number above 0 for each of \d+ plans"):
        VirtualRun(4, lambda _: NARROW, policy=scores).play(3)


def test_without_a_gain_curve_it_stays_dense_and_wants_to_know_more():
    run = VirtualRun(4, lambda _: FAR, gain_at=lambda step, ratio, _: float("nan") if step < 20 else ratio**0.5)
    run.play(15)
    assert {plans[0].exchange for plans in run.plans} == {"dense"}
    assert run.chooser.is_restless
    later = VirtualRun(4, lambda _: FAR, gain_at=lambda step, ratio, _: float("nan") if step < 20 else ratio**0.5).play(
        40
    )
    assert not later.chooser.is_restless
    assert later.plans[-1][0].exchange != "dense"


def test_promises_are_held_against_what_comes_and_that_is_reported():
    """Residuals let small ratios send 4 times their share: what is promised gets better as plans come back."""
    run = VirtualRun(
        4,
        lambda step: NARROW if step // 60 % 2 else GOOD,
        gain_at=lambda _, ratio, in_force: min(steep(ratio), 4 * ratio) if in_force < 1 else steep(ratio),
        policy=Goodput(exponent=0.5),
        exchanges=("dense", "allgather_topk"),
    ).play(400)
    switches = [each for each in run.ranks[0].decisions if each.is_switch]
    told = [each for each in switches if np.isfinite(each.realised_gain) and each.before.exchange != "dense"]
    off = [abs(np.log(each.promised_gain / each.realised_gain)) for each in told]
    assert len(off) >= 2
    assert off[-1] < 0.5 * max(off)
    assert switches[0].slope == pytest.approx(15)
    assert switches[-1].slope == pytest.approx(4, rel=0.1)
    assert all(after.before == before.plan for before, after in itertools.pairwise(switches))


def test_only_rank_0_knows_the_front():
    run = VirtualRun(3).play(5)
    assert [rank.decisions[0].front is not None for rank in run.ranks] == [True, False, False]


def uses_four_bits(plan: Plan) -> bool:
    return plan.exchange == "quantized" and plan.bits == 4


@pytest.mark.parametrize(("of_four_bits", "are_used"), [(0.95, True), (-0.5, False)])
def test_four_bits_are_chosen_where_they_preserve_enough_and_not_even_tried_where_they_do_not(of_four_bits, are_used):
    run = VirtualRun(
        4,
        lambda _step: NARROW,
        policy="accurate",
        exchanges=("dense", "quantized"),
        code_gain=lambda bits: of_four_bits if bits == 4 else 0.999,
    ).play(30)
    assert {uses_four_bits(plans[0]) for plans in run.plans[2:]} == {are_used}
    assert run.ranks[0].decisions[0].gain == pytest.approx(0.95 if are_used else 1.0)


def test_codes_that_preserve_less_than_expected_are_left():
    """What is taken of the gradient alone promises too much here; the realised gain tells."""
    run = VirtualRun(4, lambda _step: NARROW, policy="accurate", exchanges=("dense", "quantized"))
    run.code_gain = lambda bits: 0.999 if bits == 8 or run.step < 3 else -0.2
    run.play(60)
    assert uses_four_bits(run.plans[3][0])
    assert not uses_four_bits(run.plans[59][0])
