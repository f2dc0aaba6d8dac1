"""Every control message survives the wire, and takes the room that its class says."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import MessageError
from headway.kernels import GAIN_RATIOS
from headway.network import Estimate, Link
from headway.tuner import Decision, Front, StepReport, all_plans
from headway.tuner.codec import Codec
from headway.tuner.messages import (
    MOST_SPANS,
    Answer,
    DecisionAnswer,
    LearningReport,
    NextRounds,
    Report,
    Span,
)

PLANS = all_plans([0.01, 0.1])
CODEC = Codec(PLANS)

numbers = st.floats(allow_nan=False, allow_infinity=True)
positive = st.floats(min_value=1e-9, max_value=1e12)
steps = st.integers(0, 2**50)
plans = st.sampled_from(PLANS)
curves = st.one_of(st.just(()), st.lists(numbers, min_size=len(GAIN_RATIOS), max_size=len(GAIN_RATIOS)).map(tuple))
links = st.builds(Link, latency_s=positive, bandwidth_bps=positive)
spans = st.lists(st.builds(Span, numbers, numbers), max_size=MOST_SPANS).map(tuple)
step_reports = st.builds(
    StepReport, own_s=numbers, exposed_s=numbers, realised_gain=numbers, curve=curves, total_curve=curves
)
decisions = st.builds(
    Decision,
    step=steps,
    cause=st.sampled_from(["start", "latency", "bandwidth", "gain", "pace", "warm-up"]),
    before=plans,
    plan=plans,
    link_before=links,
    link=links,
    gain_curve=curves,
    **dict.fromkeys(
        (
            *("own_s", "step_s", "step_s_before", "gain", "gain_before"),
            *("promised_gain", "realised_gain", "slope"),
        ),
        numbers,
    ),
)
common = {
    "has_latency_changed": st.booleans(),
    "has_bandwidth_changed": st.booleans(),
    "usual": links,
    "estimate": st.builds(Estimate, link=links, latency_error=numbers, bandwidth_error=numbers),
    "rounds": st.builds(NextRounds, steps, steps, st.booleans(), steps),
    "plan": st.none() | plans,
}
messages = st.one_of(
    st.builds(Report, spans=spans),
    st.builds(LearningReport, spans=spans, steps=step_reports),
    st.builds(Answer, **common),
    st.builds(DecisionAnswer, **common, decision=st.none() | decisions),
)


@given(messages)
def test_a_message_survives_the_wire(message):
    encoded = CODEC.encode(message)
    assert encoded.dtype == torch.float64
    assert encoded.numel() == CODEC.size(type(message))
    assert CODEC.decode(type(message), encoded) == message


@given(decisions)
def test_the_front_stays_on_rank_0(decision):
    known = replace(decision, front=Front([], *(torch.zeros(0).numpy() for _ in range(3)), own_s=0.0))
    answer = DecisionAnswer(
        has_latency_changed=False,
        has_bandwidth_changed=False,
        usual=decision.link,
        estimate=Estimate(link=decision.link, latency_error=0.0, bandwidth_error=0.0),
        rounds=NextRounds(1, 2, False, 3),
        plan=decision.plan,
        decision=known,
    )
    assert CODEC.decode(DecisionAnswer, CODEC.encode(answer)).decision == decision


def test_what_is_not_known_is_nan_on_the_other_side():
    report = LearningReport(spans=(), steps=StepReport(own_s=math.nan, exposed_s=1.0, realised_gain=math.nan))
    steps_read = CODEC.decode(LearningReport, CODEC.encode(report)).steps
    assert math.isnan(steps_read.own_s)
    assert steps_read.exposed_s == 1.0
    assert not steps_read.has_curve


def test_types_are_those_of_the_fields():
    rounds = NextRounds(next_round=7, next_thorough=9, is_restless=True, delay=3)
    link = Link(latency_s=0.1, bandwidth_bps=1e6)
    answer = Answer(
        has_latency_changed=True,
        has_bandwidth_changed=False,
        usual=link,
        estimate=Estimate(link=link, latency_error=0.1, bandwidth_error=0.2),
        rounds=rounds,
    )
    read = CODEC.decode(Answer, CODEC.encode(answer))
    assert [type(value) for value in read.rounds] == [int, int, bool, int]
    assert read.has_latency_changed is True
    assert read.plan is None


def test_more_than_fits_is_rejected():
    with pytest.raises(ValueError, match="17 entries do not fit: a message has room for 16"):
        CODEC.encode(Report(spans=(Span(0.0, 1.0),) * (MOST_SPANS + 1)))


def test_a_plan_that_is_not_in_the_list_cannot_be_named():
    answer_of_another = replace(PLANS[0], ratio=0.3)
    link = Link(latency_s=0.1, bandwidth_bps=1e6)
    with pytest.raises(KeyError):
        CODEC.encode(
            Answer(
                has_latency_changed=False,
                has_bandwidth_changed=False,
                usual=link,
                estimate=Estimate(link=link, latency_error=0.1, bandwidth_error=0.2),
                rounds=NextRounds(1, 2, False, 3),
                plan=answer_of_another,
            )
        )


def test_reports_stay_small():
    assert 8 * CODEC.size(Report) < 300
    assert 8 * CODEC.size(LearningReport) < 1100


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda numbers: numbers[:-1], "32 numbers, but a Report takes 33"),
        (lambda numbers: numbers.index_fill(0, torch.tensor([0]), 17.0), "17.0 is not an index of 17 entries"),
        (lambda numbers: numbers.index_fill(0, torch.tensor([0]), -1.0), "-1.0 is not an index"),
        (lambda numbers: numbers.index_fill(0, torch.tensor([0]), math.nan), "nan is not an index"),
    ],
)
def test_numbers_that_are_no_message_are_rejected(spoil, message):
    with pytest.raises(MessageError, match=message):
        CODEC.decode(Report, spoil(CODEC.encode(Report(spans=(Span(0.0, 1.0),)))))
