"""How often ranks talk: what a pace makes of plans, and which pace is chosen on which link."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headway.compress import Shape
from headway.exchange import PLAIN, CostModel, Plan
from headway.kernels import GAIN_RATIOS
from headway.network import Calibration, Link
from headway.tuner import (
    AdaptiveChooser,
    Balanced,
    Front,
    Pace,
    Pacing,
    Situation,
    StepReport,
    WarmUp,
    all_plans,
    paces_between,
)

OWN_S, NUM_RANKS, NUMEL = 0.1, 8, 1_663_370
CURVE = tuple(float(ratio) ** 0.4 for ratio in GAIN_RATIOS)
PACES = paces_between(1, 64, may_overlap=True)
GOOD, POOR = Link(latency_s=1e-4, bandwidth_bps=1e10), Link(latency_s=0.1, bandwidth_bps=2e6)
FAR = Link(latency_s=0.2, bandwidth_bps=1e7)


def front_of(sync_s: float, gain: float = 0.2) -> Front:
    return Front([PLAIN], np.array([0.01]), np.array([sync_s]), np.array([gain]), OWN_S)


@pytest.mark.parametrize(
    ("pace", "added_s"),
    [(Pace(1, 0), 0.51), (Pace(4, 0), 0.51 / 4), (Pace(4, 2), (0.5 - 0.2 + 0.01) / 4), (Pace(8, 8), 0.01 / 8)],
)
def test_local_steps_share_an_exchange_and_hide_what_travels_meanwhile(pace, added_s):
    paced = Pacing(PACES).at(front_of(sync_s=0.5), pace)
    assert paced.step_s[0] == pytest.approx(OWN_S + added_s)
    assert paced.gain[0] == pytest.approx(0.2 / pace.local_steps)
    assert (paced.plans[0].local_steps, paced.plans[0].delay) == pace


def test_rarer_and_later_exchanges_take_more_steps_unless_ranks_agree():
    pacing = Pacing(PACES)
    efforts = [float(pacing.at(front_of(0.5), pace).effort[0]) for pace in (Pace(), Pace(4), Pace(8), Pace(8, 2))]
    assert efforts[0] == 1
    assert efforts == sorted(set(efforts))
    for _ in range(50):
        pacing.learn(1.0)
    assert float(pacing.at(front_of(0.5), Pace(8, 2)).effort[0]) == pytest.approx(1, abs=1e-4)


def test_an_agreement_that_is_not_known_changes_nothing():
    pacing = Pacing(PACES)
    before = pacing.agreement
    pacing.learn(math.nan)
    assert pacing.agreement == before


def test_the_steps_between_exchanges_at_most_double():
    plans = Pacing(PACES).spread(front_of(0.5), Pace(4, 1)).plans
    assert {plan.local_steps for plan in plans} == {1, 2, 4, 8}
    assert {plan.local_steps for plan in Pacing([Pace(30)]).spread(front_of(0.5), Pace()).plans} == {30}


def test_the_agreement_of_all_ranks_is_that_of_their_sums():
    reports = [StepReport(own_s=0.1, exposed_s=0.2, realised_gain=0.1, moved=m, agreed=a) for m, a in ((3, 1), (1, 1))]
    assert StepReport.combined(reports).agreement == pytest.approx(0.5)
    assert math.isnan(StepReport(own_s=0.1, exposed_s=0.2, realised_gain=0.1).agreement)


class Talks:
    """A chooser for local steps, with a link that may change."""

    def __init__(self, link: Link) -> None:
        plans = [
            plan for plan in all_plans([0.003, 0.01, 0.03], ["dense", "allgather_topk"]) if plan.fusion == "bucket"
        ]
        costs = CostModel(NUM_RANKS, Calibration(link=link))
        rule = WarmUp(max_ratio=0.03, strength=0)
        self.chooser = AdaptiveChooser(plans, Balanced(), rule, costs, pacing=Pacing(PACES))
        self.chooser.set_buckets([Shape((NUMEL,))], [0.0])
        self.plan: Plan = PLAIN
        self.words: list[str] = []
        self.step = 0

    def go(self, link: Link, num_rounds: int, agreement: float = 0.3) -> Plan:
        for _ in range(num_rounds):
            report = StepReport(
                own_s=OWN_S,
                exposed_s=math.nan,
                realised_gain=math.nan,
                curve=CURVE,
                total_curve=CURVE,
                moved=1.0,
                agreed=agreement,
            )
            choice = self.chooser.consider(Situation(step=self.step, plan=self.plan, steps=report, link=link))
            if choice is not None:
                self.plan = choice.plan
                self.words += [] if choice.decision is None else [choice.decision.words]
            self.step += 1
        return self.plan


def test_on_a_good_link_ranks_talk_at_every_step():
    assert Talks(GOOD).go(GOOD, 10).local_steps == 1


def test_on_a_poor_link_steps_between_exchanges_grow_and_fall_when_it_gets_better():
    talks = Talks(POOR)
    first = talks.go(POOR, 1)
    grown = talks.go(POOR, 10)
    assert first.local_steps <= 2 < grown.local_steps
    assert any(f"every {grown.local_steps} steps" in words for words in talks.words)
    assert any("more rarely" in words for words in talks.words)
    assert talks.go(GOOD, 10).local_steps == 1


def test_ranks_that_agree_talk_more_rarely():
    rarely, often = Talks(FAR), Talks(FAR)
    assert rarely.go(FAR, 40, agreement=0.95).local_steps > often.go(FAR, 40, agreement=0.1).local_steps


def test_ranks_that_come_to_agree_talk_more_rarely_from_then_on():
    talks = Talks(FAR)
    before = talks.go(FAR, 40, agreement=0.1)
    after = talks.go(FAR, 40, agreement=0.95)
    assert after.local_steps > before.local_steps
    assert any("agree more or less" in words for words in talks.words)
