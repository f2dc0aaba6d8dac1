"""Launching workers: checks of the machine, and what the lab adds to the events of a run."""

from __future__ import annotations

import warnings
from contextlib import closing

import pytest

from headway.lab import Action, LinkSpec, Phase, Scenario, When
from headway.report import EventLog, read_events
from headway.train import launch as launch_module
from headway.train.launch import LabRecorder, check_machine
from headway.train.settings import TrainSettings

SCENARIO = Scenario(
    name="walk",
    link=LinkSpec(latency_s=0.001, bandwidth_bps=1e9),
    phases=(
        Phase(start=When(at_step=0), link=LinkSpec(latency_s=0.002)),
        Phase(start=When(at_step=30), link=LinkSpec(latency_s=0.02, bandwidth_bps=5e7)),
    ),
)


@pytest.fixture
def log(tmp_path):
    with closing(EventLog(tmp_path)) as log:
        yield log


def events(folder) -> list[dict]:
    return list(read_events(folder / "events.jsonl"))


def test_a_phase_is_recorded_with_its_link_and_first_step(tmp_path, log):
    recorder = LabRecorder(SCENARIO, 3, log)
    recorder.record(Action(kind="phase", phase=0))
    recorder.step = 29  # progress is a little behind
    recorder.record(Action(kind="phase", phase=1))
    first, second = events(tmp_path)
    assert (first["step"], first["latency_s"], first["bandwidth_bps"]) == (0, 0.002, 1e9)
    assert (second["step"], second["latency_s"], second["bandwidth_bps"]) == (30, 0.02, 5e7)
    assert (first["name"], second["name"]) == ("walk 1", "walk 2")


def test_a_phase_before_the_first_resumed_step_has_the_step_of_the_checkpoint(tmp_path, log):
    LabRecorder(SCENARIO, 3, log, first_step=40).record(Action(kind="phase", phase=1))
    assert events(tmp_path)[0]["step"] == 40


def test_events_of_ranks_and_warnings_are_recorded(tmp_path, log):
    recorder = LabRecorder(SCENARIO, 3, log)
    recorder.step = 7
    recorder.record(Action(kind="kill", ranks=(2,)))
    with recorder.recording_warnings():
        warnings.warn("the relay was saturated", UserWarning, stacklevel=1)
    assert [(event["event"], event["step"], event["text"]) for event in events(tmp_path)] == [
        ("notice", 7, "the scenario: kill rank 2"),
        ("notice", 7, "the relay was saturated"),
    ]


@pytest.mark.parametrize(
    ("num_workers", "options", "said"),
    [
        (0, {}, "the number of workers is 0"),
        (11, {}, "11 workers are too many for this machine: each needs 417 MB, and 4.0 GB are free; use at most 9"),
        (4, {"batch_size": 500}, "1437 samples are too few for 4 workers with a batch of 500 each"),
        (2, {"workload": "fashion-mnist", "data": "/nowhere"}, "there is no folder /nowhere"),
    ],
)
def test_a_run_that_the_machine_cannot_hold_is_rejected(monkeypatch, num_workers, options, said):
    monkeypatch.setattr(launch_module, "free_bytes", lambda: 4e9)
    with pytest.raises(ValueError, match=said):
        check_machine(num_workers, TrainSettings(**options))


def test_free_memory_is_plausible():
    assert 1e8 < launch_module.free_bytes() < 1e14
