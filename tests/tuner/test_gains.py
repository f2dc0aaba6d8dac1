"""Gains are predicted from one curve, and corrected by measured ones."""

from __future__ import annotations

import numpy as np
import pytest

from headway.exchange import CodeGain, Plan
from headway.kernels import GAIN_RATIOS
from headway.tuner import GainModel

NUM_RANKS = 7
GATHER = [Plan(exchange="allgather_topk", ratio=ratio, fusion="step") for ratio in (0.1, 0.01, 0.001)]
STAR = Plan(exchange="star_topk", ratio=0.01, fusion="step")
HALF = Plan(exchange="star_topk", ratio=0.01, values="fp16", fusion="step")
OTHERS = [Plan(exchange="dense"), Plan(exchange="quantized"), Plan(exchange="randomk", ratio=0.02, fusion="step")]
PLANS = [*GATHER, STAR, HALF, *OTHERS]
CURVE = GAIN_RATIOS**0.5


def model_with_curve(slope: float = 1e3) -> GainModel:
    model = GainModel(PLANS, NUM_RANKS)
    model.slope = slope
    model.learn_curve(CURVE, (CodeGain(8, 1.0),))
    return model


def test_before_there_is_a_curve_nothing_is_known():
    assert GainModel(PLANS, NUM_RANKS).predict().tolist() == [1.0] * len(PLANS)


def test_top_k_sends_what_the_curve_says_and_others_what_they_must():
    gains = dict(zip(PLANS, model_with_curve().predict(), strict=True))
    assert [gains[plan] for plan in GATHER] == pytest.approx([0.1**0.5, 0.1, 0.001**0.5], rel=1e-3)
    assert [gains[plan] for plan in OTHERS] == pytest.approx([1.0, 1.0, 0.02])


def test_a_small_ratio_sends_in_proportion_and_a_large_one_what_the_curve_says():
    gains = dict(zip(PLANS, model_with_curve(slope=5.0).predict(), strict=True))
    assert gains[GATHER[2]] == pytest.approx(0.005, rel=1e-3)
    assert gains[GATHER[0]] == pytest.approx(0.1**0.5, rel=0.05)
    assert gains[GATHER[1]] < min(0.1, 0.05)


def test_ranks_that_take_turns_count_by_how_long_a_turn_takes():
    model = model_with_curve()
    model.learn_realised(STAR, 0.08, CURVE)
    assert model.predict()[3] == pytest.approx(0.08 / ((NUM_RANKS + 1) / 2), rel=1e-3)
    assert model.counted(STAR, 0.08) == pytest.approx(0.02)
    assert model.counted(GATHER[0], 0.08) == 0.08


def test_formats_differ_in_what_they_lose():
    signs, bytes_ = (Plan(exchange="allgather_topk", ratio=0.01, values=values) for values in ("sign", "int8"))
    model = GainModel([signs, bytes_], num_ranks=8)
    assert model.factor(signs.form) < model.factor(bytes_.form) == 1
    model.learn_curve(CURVE)
    model.learn_realised(signs, 0.5 * float(np.interp(np.log(0.01), np.log(GAIN_RATIOS), CURVE)), CURVE)
    assert model.factor(signs.form) == pytest.approx(0.5)
    assert model.factor(bytes_.form) > 0.55  # untried: less than at first, but more than signs


def test_what_is_observed_replaces_the_guess_and_then_smooths():
    model = model_with_curve()
    model.learn_realised(STAR, 0.06, CURVE)
    assert model.factor(STAR.form) == pytest.approx(0.6)
    assert model.factor(HALF.form) == pytest.approx(0.6)  # the nearest that is known
    model.learn_realised(STAR, 0.09, CURVE)
    assert 0.6 < model.factor(STAR.form) < 0.9


@pytest.mark.parametrize("real", [4.0, 20.0])
def test_the_slope_is_learned_from_what_small_ratios_send(real):
    """Under its residual, the top of G holds less than that of the gradient."""
    model = model_with_curve(slope=10.0)
    for _ in range(30):
        model.learn_realised(GATHER[2], real * 0.001, np.minimum(CURVE, real * GAIN_RATIOS))
    assert model.slope == pytest.approx(real, rel=0.01)
    assert model.predict()[2] == pytest.approx(real * 0.001, rel=0.05)


def test_what_is_not_limited_by_the_residual_tells_nothing_of_the_slope():
    model = model_with_curve(slope=10.0)
    model.learn_realised(GATHER[0], 0.1**0.5, CURVE)
    for plan in OTHERS:
        model.learn_realised(plan, 0.001, CURVE / 100)
    assert model.slope == 10.0
    assert np.allclose(model.predict()[-1], 0.02)


EIGHT, FOUR = (Plan(exchange="quantized", bits=bits, fusion="step") for bits in (8, 4))


def model_of_codes(codes: tuple[CodeGain, ...]) -> GainModel:
    model = GainModel([EIGHT, FOUR, Plan(exchange="dense")], NUM_RANKS)
    model.learn_curve(CURVE, codes)
    return model


def test_codes_preserve_what_is_expected_of_them_before_any_has_been_tried():
    gains = model_of_codes((CodeGain(8, 0.999), CodeGain(4, 0.7))).predict()
    assert gains.tolist() == pytest.approx([0.999, 0.7, 1.0])


def test_codes_that_lose_more_than_there_is_have_the_least_gain():
    gains = model_of_codes((CodeGain(8, 0.99), CodeGain(4, -0.5))).predict()
    assert gains[1] < 1e-5


def test_what_is_measured_of_codes_corrects_what_is_expected():
    model = model_of_codes((CodeGain(8, 0.99), CodeGain(4, 0.8)))
    model.learn_realised(FOUR, 0.4, CURVE)
    assert model.predict()[1] == pytest.approx(0.4)
    for _ in range(30):
        model.learn_realised(FOUR, -1.0, CURVE)
    assert model.predict()[1] < 1e-4
    assert model.predict()[2] == 1.0


def test_bits_that_fail_say_nothing_of_other_bits():
    model = model_of_codes((CodeGain(8, 0.999), CodeGain(4, 0.3)))
    for _ in range(3):
        model.learn_realised(FOUR, -1.0, CURVE)
    eight, four, _ = model.predict()
    assert eight > 0.9
    assert four < 1e-4


def test_codes_of_which_nothing_is_known_have_the_least_gain():
    """A step whose gradient is not finite may give a curve, but no gains of codes."""
    model = model_of_codes(())
    assert model.predict().tolist() == pytest.approx([0.0, 0.0, 1.0], abs=1e-5)
    model.learn_realised(FOUR, 0.0, CURVE)
    model.learn_curve(CURVE, (CodeGain(8, 0.999), CodeGain(4, 0.7)))
    assert model.predict().tolist() == pytest.approx([0.999, 0.7, 1.0])


def test_what_was_expected_to_fail_and_does_is_as_good_as_untried():
    model = model_of_codes((CodeGain(8, 0.999), CodeGain(4, -0.5)))
    model.learn_realised(FOUR, -0.5, CURVE)
    for _ in range(10):
        model.learn_curve(CURVE, (CodeGain(8, 0.999), CodeGain(4, 0.7)))
    assert model.predict()[1] == pytest.approx(0.7, rel=1e-3)


def test_a_form_that_has_failed_is_forgiven_slowly_while_another_is_in_force():
    model = model_of_codes((CodeGain(8, 0.999), CodeGain(4, 0.7)))
    for _ in range(30):
        model.learn_realised(FOUR, -1.0, CURVE)
    gains = []
    for _ in range(500):
        model.learn_realised(EIGHT, 0.999, CURVE)
        gains.append(model.predict()[1])
    assert gains[9] < 0.1
    assert gains == sorted(gains)
    assert gains[-1] == pytest.approx(0.7, rel=0.02)
    assert model.predict()[0] == pytest.approx(0.999)


def test_a_form_that_sends_fewer_entries_returns_to_its_first_factor():
    model = model_with_curve()
    first = model.factor(STAR.form)
    model.learn_realised(STAR, 0.1 * first / 3, CURVE)
    for _ in range(500):
        model.learn_realised(GATHER[0], 0.1**0.5, CURVE)
    assert model.factor(STAR.form) == pytest.approx(first, rel=0.02)


def test_an_exchange_that_sends_everything_in_its_own_way_is_learned_from_what_it_preserves():
    model = model_with_curve()
    model.learn_realised(OTHERS[0], 0.6, CURVE)
    assert model.predict()[len(GATHER) + 2] == pytest.approx(0.6)


def test_curves_are_smoothed():
    model = model_with_curve()
    model.learn_curve(np.ones_like(CURVE))
    assert 0.1 < model.predict()[1] < 1
