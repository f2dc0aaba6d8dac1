"""Reading run directories: complete, cut off, damaged, resumed, and of other versions."""

from __future__ import annotations

import json

import pytest

from headway.report import VERSION, EventLog, find_runs, read_run
from headway.report.recorder import write_config
from tests.report.sample_runs import write_adaptive, write_ddp, write_gossip


def test_a_run_is_read_by_kind_of_event(tmp_path):
    run = read_run(write_adaptive(tmp_path / "mine"))
    assert (len(run.steps), len(run.decisions), len(run.evaluations), len(run.phases)) == (90, 8, 6, 3)
    assert run.name == "adaptive"
    assert run.time_s == run.steps[-1]["time_s"]
    assert run.wire_bytes == sum(step["wire_bytes"] for step in run.steps)
    assert 0.5 < run.saved < 1
    assert run.accuracy == run.evaluations[-1]["accuracy"]
    assert run.end is not None
    assert run.end["reason"] == "finished"


def test_a_run_without_a_method_has_the_name_of_its_folder(tmp_path):
    assert read_run(write_ddp(tmp_path / "monday", num_steps=2, method=None)).name == "monday"


def test_an_incomplete_last_line_is_left_out(tmp_path):
    folder = write_ddp(tmp_path, num_steps=5)
    path = folder / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    run = read_run(folder)
    assert len(run.steps) == 5
    assert run.end is None


@pytest.mark.parametrize("damage", [b'{"event": "st\n', b"[1, 2]\n", b'{"no": "event"}\n', b"\xff\xfe\n"])
def test_a_damaged_line_is_named(tmp_path, damage):
    folder = write_ddp(tmp_path, num_steps=5)
    path = folder / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], damage, *lines[3:]]))
    with pytest.raises(ValueError, match=r"events\.jsonl, line 4 is not .*: the file is damaged"):
        read_run(folder)


def test_another_version_is_rejected_with_advice(tmp_path):
    folder = write_ddp(tmp_path, num_steps=2)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "version": 7}))
    with pytest.raises(ValueError, match=f"version 7, but this headway reads version {VERSION}: use the headway that"):
        read_run(folder)


def test_other_folders_are_rejected_with_advice(tmp_path):
    with pytest.raises(ValueError, match=r"no config\.json; headway train --output makes one"):
        read_run(tmp_path)
    write_config(tmp_path, {})
    with pytest.raises(ValueError, match="has not begun to train"):
        read_run(tmp_path)
    EventLog(tmp_path).close()
    with pytest.raises(ValueError, match="has no events yet"):
        read_run(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not JSON"):
        read_run(tmp_path)


def test_repeated_steps_of_a_resumed_run_count_once(tmp_path):
    write_config(tmp_path, {})
    log = EventLog(tmp_path)
    log.write("start", version=VERSION, time_s=0.0)
    for step in range(1, 7):
        log.write("step", step=step, time_s=float(step), wire_bytes=1, dense_bytes=10, loss=1.0)
    log.write("evaluation", step=6, time_s=6.0, accuracy=0.9)
    log.write("end", step=6, time_s=6.0, reason="stopped")
    log.write("resume", step=4, time_s=4.0)
    for step in range(5, 9):
        log.write("step", step=step, time_s=step + 0.5, wire_bytes=2, dense_bytes=10, loss=1.0)
    log.close()
    run = read_run(tmp_path)
    assert [step["step"] for step in run.steps] == list(range(1, 9))
    assert run.wire_bytes == 4 * 1 + 4 * 2
    assert run.evaluations == []
    assert run.end is None


def test_a_folder_of_runs_means_all_of_them(tmp_path):
    adaptive, ddp = write_adaptive(tmp_path / "b", num_steps=3), write_ddp(tmp_path / "a", num_steps=3)
    (tmp_path / "notes").mkdir()
    write_config(tmp_path / "not begun", {})
    assert find_runs([tmp_path]) == [ddp, adaptive]
    assert find_runs([adaptive, tmp_path]) == [adaptive, ddp]  # each once
    assert find_runs([tmp_path / "notes"]) == [tmp_path / "notes"]  # read_run says what it lacks
    with pytest.raises(ValueError, match="nowhere is not a folder: give a run directory"):
        find_runs([tmp_path / "nowhere"])


def test_a_run_may_have_no_end(tmp_path):
    assert read_run(write_gossip(tmp_path, num_steps=3, reason=None)).end is None


def test_only_the_last_start_of_a_run_counts(tmp_path):
    write_config(tmp_path, {})
    log = EventLog(tmp_path)
    for loss in (2.0, 1.0):
        log.write("start", version=1, num_steps=2)
        log.write("step", step=1, time_s=0.1, loss=loss)
    log.close()
    assert [step["loss"] for step in read_run(tmp_path).steps] == [1.0]
