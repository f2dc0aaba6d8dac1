"""The progress of a run, from its events."""

from __future__ import annotations

import math

import pytest

from headway.report import EventLog
from headway.train.progress import EventFollower, RunProgress

START = {"event": "start", "time_s": 0.0, "num_steps": 90}


def step(number: int, loss: float | None = 2.0, step_s: float = 0.1) -> dict:
    sizes = {"wire_bytes": 1_000_000, "dense_bytes": 10_000_000}
    return {"event": "step", "step": number, "step_s": step_s, "loss": loss, **sizes}


def test_the_time_left_follows_from_the_last_steps():
    progress = RunProgress()
    for event in [START, *(step(number, step_s=1.0 if number < 40 else 0.1) for number in range(1, 61))]:
        progress.update(event)
    assert progress.left_s == pytest.approx(3.0)
    assert progress.saved == pytest.approx(0.9)
    progress.update(step(61, loss=None))
    assert math.isnan(progress.loss)
    progress.update(step(62, loss=0.5))
    assert progress.loss == 0.5


def test_a_resumed_run_counts_from_its_checkpoint_to_its_new_end():
    progress = RunProgress()
    for event in (START, {"event": "resume", "step": 90, "num_steps": 120, "time_s": 9.0}):
        progress.update(event)
    assert (progress.step, progress.num_steps) == (90, 120)


def test_events_are_followed_as_they_are_written(tmp_path):
    log = EventLog(tmp_path)
    log.write("start", num_ranks=2)
    log.write("notice", step=1, text="before the resume")
    follower = EventFollower(tmp_path)
    assert [event["event"] for event in follower.read()] == ["start"]
    log.write("resume", step=1)
    with log.path.open("ab") as file:
        file.write(b'{"event":"eval')
    assert [event["event"] for event in follower.read()] == ["resume"]
    with log.path.open("ab") as file:
        file.write(b'uation"}\n')
    assert [event["event"] for event in follower.read()] == ["evaluation"]
    assert follower.read() == []
    log.close()


def test_without_a_file_there_are_no_events(tmp_path):
    assert EventFollower(tmp_path).read() == []
