"""When councils are held: often when something happens, rarely when nothing does, and alike on all ranks."""

from __future__ import annotations

import itertools

import pytest

from headway.exchange.rhythm import DELAY, Rhythm


def play(rhythm: Rhythm, num_steps: int, restless: range = range(0)) -> list[tuple[int, bool]]:
    """Return the step of each council, and whether it was thorough."""
    held, answer, counts_at = [], None, 0
    for step in range(num_steps):
        if answer is not None and step == counts_at:
            rhythm.adopt(*answer)
            answer = None
        if answer is None and rhythm.is_due(step):
            held.append((step, rhythm.is_thorough(step)))
            answer, counts_at = rhythm.following(step, is_restless=step in restless), step + DELAY
    return held


@pytest.mark.parametrize(("interval", "steps"), [(10, [10, 20, 30]), (5, [5, 10, 15, 20, 25, 30]), (4, [4, 8, 12, 16])])
def test_a_fixed_plan_has_regular_councils_that_are_all_thorough(interval, steps):
    held = play(Rhythm(interval), 35)
    assert [step for step, _ in held][: len(steps)] == steps
    assert all(is_thorough for _, is_thorough in held)


def test_a_short_interval_means_every_third_step():
    assert [step for step, _ in play(Rhythm(1), 12)] == [1, 4, 7, 10]


def test_an_adaptive_run_looks_every_third_step_and_thoroughly_ever_more_rarely():
    held = play(Rhythm(10, looks_often=True), 200)
    assert [step for step, _ in held] == list(range(3, 200, DELAY))
    thorough = [step for step, is_thorough in held if is_thorough]
    pauses = [after - before for before, after in itertools.pairwise(thorough)]
    assert pauses == sorted(pauses)
    assert pauses[0] <= 12
    assert pauses[-1] == 42  # four intervals, at the next look


def test_restlessness_makes_all_councils_thorough_and_what_was_calm_is_forgotten():
    held = play(Rhythm(10, looks_often=True), 200, restless=range(90, 100))
    thorough = [step for step, is_thorough in held if is_thorough]
    assert [step for step in thorough if 90 < step <= 102] == [93, 96, 99, 102]
    after = [step for step in thorough if step > 102]
    assert after[0] - 102 <= 12


def test_a_measured_step_is_the_one_before_a_thorough_council():
    rhythm = Rhythm(10, looks_often=True)
    assert [step for step in range(10) if rhythm.is_measured(step)] == [9]
    rhythm.adopt(3, 3, 1.0)
    assert rhythm.is_measured(1)


def test_going_back_to_an_earlier_step_does_not_stop_councils():
    rhythm = Rhythm(10)
    rhythm.adopt(500, 500, 0.0)
    rhythm.restart(23)
    assert (rhythm.next_council, rhythm.next_thorough) == (30, 30)
    often = Rhythm(10, looks_often=True)
    often.restart(23)
    assert (often.next_council, often.next_thorough) == (26, 33)
