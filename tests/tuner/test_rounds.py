"""When control rounds are held."""

from __future__ import annotations

import itertools

import pytest

from headway.tuner import RoundSchedule
from headway.tuner.messages import NextRounds
from headway.tuner.rounds import MIN_DELAY, delay_for


def play(
    schedule: RoundSchedule, num_steps: int, restless: range = range(0), delay: int = MIN_DELAY
) -> list[tuple[int, bool]]:
    """Return the step of each round, and whether it was thorough."""
    held, answer, counts_at = [], None, 0
    for step in range(num_steps):
        if answer is not None and step == counts_at:
            schedule.adopt(answer)
            answer = None
        if answer is None and schedule.is_due(step):
            held.append((step, schedule.is_thorough(step)))
            answer = schedule.following(step, is_restless=step in restless, delay=delay)
            counts_at = step + schedule.delay
            schedule.start(step)
        schedule.measured = [*getattr(schedule, "measured", []), *([step] if schedule.is_measured(step) else [])]
    return held


@pytest.mark.parametrize(("interval", "steps"), [(10, [10, 20, 30]), (5, [5, 10, 15, 20, 25, 30]), (4, [4, 8, 12, 16])])
def test_a_fixed_plan_has_regular_rounds_that_are_all_thorough(interval, steps):
    held = play(RoundSchedule(interval), 35)
    assert [step for step, _ in held][: len(steps)] == steps
    assert all(is_thorough for _, is_thorough in held)


def test_a_short_interval_means_every_third_step():
    assert [step for step, _ in play(RoundSchedule(1), 12)] == [1, 4, 7, 10]


def test_an_adaptive_run_looks_every_third_step_and_thoroughly_ever_more_rarely():
    held = play(RoundSchedule(10, looks_often=True), 200)
    assert [step for step, _ in held] == list(range(3, 200, MIN_DELAY))
    thorough = [step for step, is_thorough in held if is_thorough]
    pauses = [after - before for before, after in itertools.pairwise(thorough)]
    assert pauses == sorted(pauses)
    assert pauses[0] <= 12
    assert pauses[-1] == 42  # four intervals, at the next look


def test_restlessness_makes_all_rounds_thorough_and_what_was_calm_is_forgotten():
    held = play(RoundSchedule(10, looks_often=True), 200, restless=range(90, 100))
    thorough = [step for step, is_thorough in held if is_thorough]
    assert [step for step in thorough if 90 < step <= 102] == [93, 96, 99, 102]
    after = [step for step in thorough if step > 102]
    assert after[0] - 102 <= 12


@pytest.mark.parametrize(("looks_often", "restless"), [(False, range(0)), (True, range(0)), (True, range(60, 80))])
def test_a_measured_step_is_the_one_before_a_thorough_round(looks_often, restless):
    schedule = RoundSchedule(10, looks_often=looks_often)
    thorough = [step for step, is_thorough in play(schedule, 120, restless) if is_thorough]
    assert thorough[0] - 1 in schedule.measured
    assert len(set(schedule.measured) - {step - 1 for step in thorough}) <= 2  # calm again, or the run is over
    assert len(schedule.measured) >= len(thorough) - 3  # that after a first suspicion comes as a surprise


def test_where_steps_are_short_answers_count_later_and_rounds_are_rarer():
    held = play(RoundSchedule(10, looks_often=True), 60, delay=7)
    assert [step for step, _ in held] == [3, 6, *range(13, 60, 7)]
    assert delay_for(round_s=10.0, step_s=0.01) == 12


def test_going_back_to_an_earlier_step_does_not_stop_rounds():
    schedule = RoundSchedule(10)
    schedule.adopt(NextRounds(500, 500, False, 3))
    schedule.restart(23)
    assert (schedule.rounds.next_round, schedule.rounds.next_thorough) == (30, 30)
    often = RoundSchedule(10, looks_often=True)
    often.restart(23)
    assert (often.rounds.next_round, often.rounds.next_thorough) == (26, 33)
