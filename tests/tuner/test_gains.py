"""What plans teach is foretold from one curve, and corrected by what comes."""

from __future__ import annotations

import numpy as np
import pytest

from headway.exchange import Plan
from headway.kernels import GAIN_RATIOS
from headway.tuner import GainModel

NUM_RANKS = 7
GATHER = [Plan(exchange="allgather_topk", ratio=ratio, fusion="step") for ratio in (0.1, 0.01, 0.001)]
STAR = Plan(exchange="star_topk", ratio=0.01, fusion="step")
HALF = Plan(exchange="star_topk", ratio=0.01, values="fp16", fusion="step")
OTHERS = [Plan(exchange="dense"), Plan(exchange="quantized"), Plan(exchange="randomk", ratio=0.02, fusion="step")]
PLANS = [*GATHER, STAR, HALF, *OTHERS]
CURVE = GAIN_RATIOS**0.5


def model_with_curve() -> GainModel:
    model = GainModel(PLANS, NUM_RANKS)
    model.exponent = 0.0
    model.learn_curve(CURVE)
    return model


def test_before_there_is_a_curve_nothing_is_known():
    assert GainModel(PLANS, NUM_RANKS).predict().tolist() == [1.0] * len(PLANS)


def test_top_k_sends_what_the_curve_says_and_others_what_they_must():
    gains = dict(zip(PLANS, model_with_curve().predict(), strict=True))
    assert [gains[plan] for plan in GATHER] == pytest.approx([0.1**0.5, 0.1, 0.001**0.5])
    assert [gains[plan] for plan in OTHERS] == pytest.approx([1.0, 1.0, 0.02])


def test_ranks_that_take_turns_count_by_how_long_a_turn_takes():
    model = model_with_curve()
    model.learn_realised(STAR, 0.08, CURVE)
    assert model.predict()[3] == pytest.approx(0.08 / ((NUM_RANKS + 1) / 2))


def test_what_is_observed_replaces_the_guess_and_then_smooths():
    model = model_with_curve()
    model.learn_realised(STAR, 0.06, CURVE)
    assert model.factor("star_topk fp32") == pytest.approx(0.6)
    assert model.factor("star_topk fp16") == pytest.approx(0.6)  # the nearest that is known
    model.learn_realised(STAR, 0.09, CURVE)
    assert 0.6 < model.factor("star_topk fp32") < 0.9


def test_a_smaller_ratio_is_expected_below_the_curve_and_a_larger_one_above():
    model = model_with_curve()
    for _ in range(50):
        model.forget_residual(GATHER[1], 10)  # long enough at 1%
        model.learn_curve(CURVE)
    plain = model.predict()
    model.exponent = 0.5
    corrected = model.predict()
    assert corrected[1] == pytest.approx(plain[1])
    assert corrected[2] == pytest.approx(plain[2] * 0.1**0.5)
    assert corrected[0] == pytest.approx(min(plain[0] * 10**0.5, 1.0))


def test_the_residual_follows_the_ratio_as_fast_as_it_is_sent_and_counts_with_the_next_curve():
    model = model_with_curve()
    model.exponent = 0.5
    before = model.predict()[2]
    model.forget_residual(GATHER[2], 1)
    assert model.predict()[2] == before  # the curve is still that of a residual of nothing
    model.learn_curve(CURVE)
    after_one = model.predict()[2]
    for _ in range(50):
        model.forget_residual(GATHER[2], 1000)
        model.learn_curve(CURVE)
    assert before < after_one < model.predict()[2]
    assert model.predict()[2] == pytest.approx(0.001**0.5)  # now that it is the ratio in force


@pytest.mark.parametrize("real", [0.1, 0.6])
def test_the_correction_is_learned_from_switches(real):
    model = model_with_curve()
    model.exponent = 0.3
    for _ in range(20):
        promise = model.promise(2)
        model.keep(promise, promise.on_curve * (0.001 / promise.ratio_before) ** real)
    assert model.exponent == pytest.approx(real, abs=0.01)


def test_what_the_factor_explains_is_not_put_down_to_the_exponent():
    model = model_with_curve()
    promise = model.promise(3)
    model.learn_realised(STAR, 0.03, CURVE)  # 0.3 of what the curve says, where 0.5 was the guess
    model.keep(promise, 0.03)
    assert model.exponent == pytest.approx(0.0, abs=1e-9)


def test_switches_that_tell_nothing_teach_nothing():
    model = model_with_curve()
    for _ in range(50):
        model.forget_residual(GATHER[1], 100)
        model.learn_curve(CURVE)
    for index in (1, 5, 7):  # the same ratio, dense, random-k
        model.keep(model.promise(index), 0.5)
    model.learn_realised(OTHERS[2], 0.9, CURVE)
    assert model.exponent == 0.0
    assert np.allclose(model.predict()[-1], 0.02)
