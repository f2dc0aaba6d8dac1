"""The event log: whole lines, plain JSON, and nothing lost."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from headway.report import EventLog, read_events
from headway.report.events import plain


def events_in(folder: Path) -> list[dict]:
    return list(read_events(folder / "events.jsonl"))


def test_what_is_written_is_read_and_told(tmp_path):
    told: list[dict] = []
    log = EventLog(tmp_path / "new" / "run", told.append)
    log.write("start", time_s=0.0, method="mine")
    log.write("step", step=1, loss=0.5)
    log.close()
    log.close()
    assert events_in(tmp_path / "new" / "run") == told
    assert told == [{"event": "start", "time_s": 0.0, "method": "mine"}, {"event": "step", "step": 1, "loss": 0.5}]


def test_numbers_that_json_does_not_know_become_null(tmp_path):
    log = EventLog(tmp_path)
    log.write("step", loss=math.nan, ratio=math.inf, gain=np.float32("nan"), ranks=[1.0, -math.inf])
    log.close()
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(line) == {"event": "step", "loss": None, "ratio": None, "gain": None, "ranks": [1.0, None]}


def test_values_become_plain():
    assert plain({"n": np.int64(3), "x": np.float32(0.5), "path": Path("a/b"), 1: (True, None)}) == {
        "n": 3,
        "x": 0.5,
        "path": "a/b",
        "1": [True, None],
    }


def test_steps_wait_for_a_moment_and_all_else_is_seen_at_once(tmp_path):
    log = EventLog(tmp_path)
    log.write("start")
    for step in range(3):
        log.write("step", step=step)
    assert len(events_in(tmp_path)) < 4
    log.write("notice", text="now")
    assert [event["event"] for event in events_in(tmp_path)] == ["start", "step", "step", "step", "notice"]
    log.write("step", step=3)
    log.flush()
    assert len(events_in(tmp_path)) == 6
    log.close()


def test_two_logs_may_add_to_one_file(tmp_path):
    logs = [EventLog(tmp_path), EventLog(tmp_path)]
    for number in range(20):
        logs[number % 2].write("notice", number=number)
    for log in logs:
        log.close()
    assert [event["number"] for event in events_in(tmp_path)] == list(range(20))


def test_a_kind_that_nobody_reads_is_not_written(tmp_path):
    log = EventLog(tmp_path)
    with pytest.raises(AssertionError):
        log.write("nonsense")
    log.close()


def test_a_line_that_was_torn_is_cut_off_before_more_is_written(tmp_path):
    """A disk that was full, or a writer that was killed; what is added must not be glued to it."""
    (tmp_path / "events.jsonl").write_bytes(b'{"event":"start"}\n{"event":"st')
    log = EventLog(tmp_path)
    log.write("end", step=3)
    log.close()
    assert [event["event"] for event in read_events(tmp_path / "events.jsonl")] == ["start", "end"]


def test_training_goes_on_when_the_disk_is_full(tmp_path):
    log = EventLog(tmp_path)
    log._file.close()
    log._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    with pytest.warns(UserWarning, match="events are no longer written to .*: .*No space left"):
        log.write("notice", text="one")
    log.write("notice", text="two")
    log.close()
