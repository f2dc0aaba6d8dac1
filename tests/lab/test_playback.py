"""Timelines on a virtual clock, and playback on a real one."""

import threading

import pytest

from headway.lab import Event, LinkSpec, Phase, Scenario, When
from headway.lab.playback import Action, Playback, Timeline

PHASES = Scenario(
    phases=(
        Phase(start=When(at_s=0, at_step=0)),
        Phase(start=When(at_s=10, at_step=100), link=LinkSpec(latency_s=0.05)),
        Phase(start=When(at_s=20, at_step=200)),
    )
)


def test_phases_change_when_due_and_once():
    timeline = Timeline(PHASES, 2)
    assert timeline.due(0.0, None) == [Action(kind="phase", phase=0)]
    assert timeline.due(9.99, None) == []
    assert timeline.due(10.0, None) == [Action(kind="phase", phase=1)]
    assert timeline.due(25.0, None) == [Action(kind="phase", phase=2)]


def test_steps_take_over_from_the_clock():
    timeline = Timeline(PHASES, 2)
    timeline.due(15.0, None)
    assert timeline.due(16.0, 3) == [Action(kind="phase", phase=0)]
    assert timeline.due(17.0, 99) == []
    assert timeline.due(17.0, 100) == [Action(kind="phase", phase=1)]


def test_a_phase_that_has_passed_is_skipped():
    timeline = Timeline(PHASES, 2)
    timeline.due(0.0, None)
    assert timeline.due(50.0, None) == [Action(kind="phase", phase=2)]


def test_events_begin_and_end():
    scenario = Scenario(
        events=(
            Event(kind="cut", ranks=(1,), start=When(at_s=5), duration_s=2),
            Event(kind="freeze", ranks="all", start=When(at_step=7), duration_s=1),
            Event(kind="kill", ranks=(0,), start=When(at_s=6)),
        )
    )
    timeline = Timeline(scenario, 2)
    assert timeline.due(4.9, None) == [Action(kind="phase", phase=None)]
    assert timeline.due(5.0, None) == [Action(kind="cut", ranks=(1,))]
    assert timeline.due(6.0, 7) == [Action(kind="freeze", ranks=(0, 1)), Action(kind="kill", ranks=(0,))]
    assert timeline.due(7.0, 7) == [Action(kind="heal", ranks=(1,)), Action(kind="thaw", ranks=(0, 1))]
    assert timeline.due(100.0, 100) == []


def test_the_next_time_at_which_something_is_due():
    timeline = Timeline(PHASES, 2)
    assert timeline.next_time_s(0.0) == 10
    assert timeline.next_time_s(15.0) == 20
    assert timeline.next_time_s(20.0) is None


def test_the_thread_acts_by_clock_and_step():
    scenario = Scenario(
        phases=(Phase(start=When(at_s=0)), Phase(start=When(at_s=0.1))),
        events=(Event(kind="kill", ranks=(0,), start=When(at_step=3)),),
    )
    kinds, done = [], threading.Event()

    def act(action):
        kinds.append(action.kind)
        if len(kinds) == 3:
            done.set()

    playback = Playback(scenario, 1, act, pytest.fail)
    playback.start()
    playback.announce(3)
    assert done.wait(10)
    playback.stop()
    assert sorted(kinds) == ["kill", "phase", "phase"]


def test_a_failed_action_is_reported():
    failures = []

    def act(action):
        if action.phase == 1:
            raise RuntimeError("no")

    scenario = Scenario(phases=(Phase(start=When(at_s=0)), Phase(start=When(at_s=0.05))))
    reported = threading.Event()
    playback = Playback(scenario, 1, act, lambda error: (failures.append(error), reported.set()))
    playback.start()
    assert reported.wait(10)
    playback.stop()
    assert str(failures[0]) == "no"
