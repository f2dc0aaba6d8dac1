"""What the launcher writes into a run: the emulated network as it is, what happens to ranks, warnings of the lab."""

from __future__ import annotations

import warnings
from contextlib import closing

import pytest

from headway.lab import Action, Link, Phase, Scenario, When
from headway.report import EventLog, read_events
from headway.train.launch import LabNotes

SCENARIO = Scenario(
    name="walk",
    link=Link(latency_s=0.001, bandwidth_bps=1e9),
    phases=(
        Phase(start=When(at_step=0), link=Link(latency_s=0.002)),
        Phase(start=When(at_step=30), link=Link(latency_s=0.02, bandwidth_bps=5e7)),
    ),
)


@pytest.fixture
def log(tmp_path):
    with closing(EventLog(tmp_path)) as log:
        yield log


def events(folder) -> list[dict]:
    return list(read_events(folder / "events.jsonl"))


def test_a_phase_is_noted_with_its_link_and_the_step_it_begins_at(tmp_path, log):
    taker = LabNotes(SCENARIO, 3, log)
    taker.take(Action(kind="phase", phase=0))
    taker.step = 29  # progress is a little behind
    taker.take(Action(kind="phase", phase=1))
    first, second = events(tmp_path)
    assert (first["step"], first["latency_s"], first["bandwidth_bps"]) == (0, 0.002, 1e9)
    assert (second["step"], second["latency_s"], second["bandwidth_bps"]) == (30, 0.02, 5e7)
    assert (first["name"], second["name"]) == ("walk 1", "walk 2")


def test_before_the_first_step_of_a_resumed_run_it_is_where_that_goes_on_from(tmp_path, log):
    LabNotes(SCENARIO, 3, log, first_step=40).take(Action(kind="phase", phase=1))
    assert events(tmp_path)[0]["step"] == 40


def test_what_happens_to_ranks_and_warnings_are_noted(tmp_path, log):
    taker = LabNotes(SCENARIO, 3, log)
    taker.step = 7
    taker.take(Action(kind="kill", ranks=(2,)))
    with taker.taking_warnings():
        warnings.warn("the relay was saturated", UserWarning, stacklevel=1)
    assert [(event["event"], event["step"], event["text"]) for event in events(tmp_path)] == [
        ("notice", 7, "the scenario: kill rank 2"),
        ("notice", 7, "the relay was saturated"),
    ]
