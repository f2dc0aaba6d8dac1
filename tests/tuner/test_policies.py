"""Policies on fronts that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headway.exchange import Plan
from headway.tuner import POLICIES, Balanced, Front, Goodput, Knee, Shortest, policy_of

PLANS = [Plan(exchange="dense"), *(Plan(exchange="allgather_topk", ratio=ratio) for ratio in (0.1, 0.01, 0.001))]


def front_of(sync_s: list[float], gain: list[float], own_s: float = 0.1) -> Front:
    times = np.array(sync_s)
    return Front(PLANS[: len(times)], np.zeros(len(times)), times, np.array(gain), own_s)


def choice(policy, front: Front) -> int:
    return int(policy(front).argmax())


SLOW = front_of([2.0, 0.4, 0.05, 0.02], [1.0, 0.9, 0.2, 0.02])
NEAR = front_of([0.001, 0.0009, 0.0008, 0.0007], [1.0, 0.9, 0.2, 0.02])


def test_on_a_slow_network_each_has_its_own_taste():
    assert choice(policy_of("fast"), SLOW) == 3
    assert choice(policy_of("balanced"), SLOW) == 2
    assert choice(policy_of("accurate"), SLOW) == 1
    assert choice(Goodput(exponent=2.0), SLOW) == 1


def test_where_sending_costs_nothing_all_but_the_knee_send_everything():
    for name in ("balanced", "fast", "accurate", "goodput"):
        assert choice(POLICIES[name], NEAR) == 0, name


def test_balanced_takes_least_time_to_learn_the_same():
    policy = Balanced(patience=0.02, floor=0.0)
    steps = 1 + (0.02 / SLOW.gain) ** 1.5
    assert policy(SLOW) == pytest.approx(1 / (steps * SLOW.step_s))


def test_with_momentum_correction_balanced_makes_do_with_less_gain():
    policy, corrected = Balanced(), replace(SLOW, is_corrected=True)
    assert choice(policy, front_of([0.8, 0.1], [0.2, 0.03])) == 0
    assert choice(policy, replace(front_of([0.8, 0.1], [0.2, 0.03]), is_corrected=True)) == 1
    star_or_gather = replace(front_of([0.2, 0.22], [0.015, 0.026]), is_corrected=True)
    assert choice(policy, star_or_gather) == 1
    steps = 1 + (0.01 / SLOW.gain) ** 1.5
    assert policy(corrected) == pytest.approx(1 / (steps * SLOW.step_s))


def test_the_knee_is_the_achievement_scalarising_function():
    """Worked out by hand: time 0, 0.5, 1 and loss 1, 0.25, 0 with weights 0.6 and 0.4."""
    front = front_of([0.3, 0.2, 0.1], [1.0, 0.5, 0.2])
    assert 1 / Knee()(front) - 1 == pytest.approx([0.6, 0.3, 0.4])
    assert choice(Knee(), front) == 1


def test_nothing_is_worse_than_a_gain_below_the_floor():
    front = front_of([2.0, 0.4, 0.05, 0.0001], [1.0, 0.9, 0.2, 0.005])
    for policy in (Balanced(), Shortest(floor=0.01)):
        scores = policy(front)
        assert scores.argmin() == 3
        assert (scores > 0).all()
    assert choice(Shortest(floor=1.0), front) == 0


def test_if_all_are_below_the_floor_the_most_teaching_one_is_taken():
    front = front_of([0.4, 0.2, 0.1, 0.05], [0.04, 0.03, 0.02, 0.01])
    for policy in (Shortest(floor=0.5), Balanced(floor=0.5)):
        assert choice(policy, front) == 0


def test_of_steps_that_are_as_short_the_one_with_most_gain_is_taken():
    assert choice(Shortest(floor=0.01), front_of([0.5, 0.011, 0.0105, 0.01], [1.0, 0.5, 0.4, 0.3])) == 1


@pytest.mark.parametrize("policy", [*POLICIES.values()])
def test_one_plan_and_no_time_are_no_trouble(policy):
    scores = policy(front_of([0.0], [1.0], own_s=0.0))
    assert np.isfinite(scores).all()
    assert scores[0] > 0


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"policy is 'clever', but must be one of balanced, fast, accurate"):
        policy_of("clever")


def test_a_callable_is_its_own_policy():
    def mine(front: Front) -> np.ndarray:
        return np.ones(len(front))

    assert policy_of(mine) is mine


@pytest.mark.parametrize(("gain", "stays"), [(0.75, True), (0.5, False)])
def test_the_plan_in_force_may_be_a_little_below_the_floor(gain, stays):
    front = front_of([0.5, 0.1], [1.0, gain])
    assert choice(policy_of("accurate"), front) == 0
    assert choice(policy_of("accurate"), replace(front, in_force=1)) == int(stays)
