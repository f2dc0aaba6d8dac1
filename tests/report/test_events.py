"""The event log: complete lines of plain JSON, and nothing lost."""

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


def test_events_are_written_and_passed_to_the_listener(tmp_path):
    heard: list[dict] = []
    log = EventLog(tmp_path / "new" / "run", heard.append)
    log.write("start", time_s=0.0, method="mine")
    log.write("step", step=1, loss=0.5)
    log.close()
    log.close()
    assert events_in(tmp_path / "new" / "run") == heard
    assert heard == [{"event": "start", "time_s": 0.0, "method": "mine"}, {"event": "step", "step": 1, "loss": 0.5}]


def test_nan_and_infinity_become_null(tmp_path):
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


def test_steps_are_written_in_batches_and_other_events_at_once(tmp_path):
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


def test_two_logs_can_append_to_one_file(tmp_path):
    logs = [EventLog(tmp_path), EventLog(tmp_path)]
    for number in range(20):
        logs[number % 2].write("notice", number=number)
    for log in logs:
        log.close()
    assert [event["number"] for event in events_in(tmp_path)] == list(range(20))


def test_an_unknown_kind_of_event_is_an_error(tmp_path):
    log = EventLog(tmp_path)
    with pytest.raises(AssertionError):
        log.write("nonsense")
    log.close()


def test_an_incomplete_last_line_is_removed_first(tmp_path):
    """A full disk or a killed writer may have left one, and the next event must not continue it."""
    (tmp_path / "events.jsonl").write_bytes(b'{"event":"start"}\n{"event":"st')
    log = EventLog(tmp_path)
    log.write("end", step=3)
    log.close()
    assert [event["event"] for event in read_events(tmp_path / "events.jsonl")] == ["start", "end"]


def test_a_full_disk_is_a_warning(tmp_path):
    log = EventLog(tmp_path)
    log._file.close()
    log._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    with pytest.warns(UserWarning, match="events are no longer written to .*: .*No space left"):
        log.write("notice", text="one")
    log.write("notice", text="two")
    log.close()
