"""The conductor's score on a virtual clock, and its thread on a real one."""

import threading

import pytest

from headway.lab import Event, Link, Phase, Scenario, When
from headway.lab.conductor import Action, Conductor, Score

PHASES = Scenario(
    phases=(
        Phase(start=When(at_s=0, at_step=0)),
        Phase(start=When(at_s=10, at_step=100), link=Link(latency_s=0.05)),
        Phase(start=When(at_s=20, at_step=200)),
    )
)


def test_phases_change_when_due_and_once():
    score = Score(PHASES, 2)
    assert score.due(0.0, None) == [Action(kind="phase", phase=0)]
    assert score.due(9.99, None) == []
    assert score.due(10.0, None) == [Action(kind="phase", phase=1)]
    assert score.due(25.0, None) == [Action(kind="phase", phase=2)]


def test_steps_take_over_from_the_clock():
    score = Score(PHASES, 2)
    score.due(15.0, None)
    assert score.due(16.0, 3) == [Action(kind="phase", phase=0)]
    assert score.due(17.0, 99) == []
    assert score.due(17.0, 100) == [Action(kind="phase", phase=1)]


def test_a_phase_that_was_passed_by_is_skipped():
    score = Score(PHASES, 2)
    score.due(0.0, None)
    assert score.due(50.0, None) == [Action(kind="phase", phase=2)]


def test_events_begin_and_end():
    scenario = Scenario(
        events=(
            Event(kind="cut", ranks=(1,), start=When(at_s=5), duration_s=2),
            Event(kind="freeze", ranks="all", start=When(at_step=7), duration_s=1),
            Event(kind="kill", ranks=(0,), start=When(at_s=6)),
        )
    )
    score = Score(scenario, 2)
    assert score.due(4.9, None) == [Action(kind="phase", phase=None)]
    assert score.due(5.0, None) == [Action(kind="cut", ranks=(1,))]
    assert score.due(6.0, 7) == [Action(kind="freeze", ranks=(0, 1)), Action(kind="kill", ranks=(0,))]
    assert score.due(7.0, 7) == [Action(kind="heal", ranks=(1,)), Action(kind="thaw", ranks=(0, 1))]
    assert score.due(100.0, 100) == []


def test_the_next_moment_of_interest():
    score = Score(PHASES, 2)
    assert score.next_time_s(0.0) == 10
    assert score.next_time_s(15.0) == 20
    assert score.next_time_s(20.0) is None


class _Stage:
    def __init__(self, expected):
        self.actions, self.done, self._expected = [], threading.Event(), expected

    def act(self, action):
        self.actions.append(action.kind)
        if len(self.actions) == self._expected:
            self.done.set()


def test_the_thread_acts_by_clock_and_step():
    scenario = Scenario(
        phases=(Phase(start=When(at_s=0)), Phase(start=When(at_s=0.1))),
        events=(Event(kind="kill", ranks=(0,), start=When(at_step=3)),),
    )
    stage = _Stage(expected=3)
    conductor = Conductor(scenario, 1, stage, pytest.fail)
    conductor.start()
    conductor.announce(3)
    assert stage.done.wait(10)
    conductor.stop()
    assert sorted(stage.actions) == ["kill", "phase", "phase"]


def test_a_failure_on_stage_is_reported():
    failures = []

    class Broken:
        def act(self, action):
            if action.phase == 1:
                raise RuntimeError("no")

    scenario = Scenario(phases=(Phase(start=When(at_s=0)), Phase(start=When(at_s=0.05))))
    reported = threading.Event()
    conductor = Conductor(scenario, 1, Broken(), lambda error: (failures.append(error), reported.set()))
    conductor.start()
    assert reported.wait(10)
    conductor.stop()
    assert str(failures[0]) == "no"
