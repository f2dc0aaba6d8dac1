"""The choice of a fixed plan's fusion."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.compress import Shape
from headway.exchange import CostModel, Plan
from headway.network import Calibration, Change, Link
from headway.tuner import FusionChooser, Situation, StepReport

FAR, NEAR = Link(latency_s=0.05, bandwidth_bps=1e9), Link(latency_s=1e-6, bandwidth_bps=1e7)
PLANS = [Plan(exchange="dense", algorithm="ring", fusion=fusion) for fusion in ("bucket", "step")]
SHAPES = [Shape((70_000,)), Shape((30_000,))]
NOTHING = StepReport(own_s=0.1, exposed_s=0.1, realised_gain=1.0)


def situation(link: Link, plan: Plan = PLANS[0], changes: tuple[Change, ...] = ()) -> Situation:
    return Situation(step=2, plan=plan, steps=NOTHING, link=link, changes=changes)


@pytest.mark.parametrize(("link", "fusion"), [(FAR, "step"), (NEAR, "bucket")])
def test_rounds_are_weighed_against_overlap(link, fusion):
    chooser = FusionChooser(PLANS, CostModel(2, Calibration(link=link)))
    chooser.set_buckets(SHAPES, [0.0, 0.1])
    assert chooser.consider(situation(link)).plan.fusion == fusion


def test_nothing_is_chosen_before_buckets_are_known_nor_again_without_a_change_of_the_link():
    chooser = FusionChooser(PLANS, CostModel(2, Calibration(link=FAR)))
    assert chooser.consider(situation(FAR)) is None
    chooser.set_buckets(SHAPES, [0.0, 0.1])
    assert chooser.consider(situation(FAR)) is not None
    assert chooser.consider(situation(NEAR)) is None
    change = Change(what="latency", before=FAR, after=NEAR)
    assert chooser.consider(situation(NEAR, changes=(change,))).plan.fusion == "bucket"
    chooser.set_buckets(SHAPES, [0.0, 0.1])
    assert chooser.consider(situation(NEAR)) is not None


def test_of_equally_cheap_plans_the_first_is_taken():
    """One bucket: fused or not is the same."""
    chooser = FusionChooser(PLANS, CostModel(2, Calibration(link=FAR)))
    chooser.set_buckets(SHAPES[:1], [0.0])
    assert chooser.consider(situation(FAR, replace(PLANS[0], fusion="auto"))).plan.fusion == "bucket"
