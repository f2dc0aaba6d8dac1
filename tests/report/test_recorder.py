"""The recorder, with a handle whose traffic is made up."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from headway.averaging import Statistics
from headway.exchange import Plan
from headway.local import LocalOptimizer
from headway.report import VERSION, Recorder, read_run
from headway.report.events import Event
from headway.tuner import Decision
from tests.report.sample_runs import PHASES, decide


@dataclass
class Totals:
    step: int = 0
    wire_bytes: int = 0
    dense_bytes: int = 0


class Handle:
    """Sends 10 of 100 bytes in every step."""

    exchange = "mine"

    def __init__(self) -> None:
        self.totals = Totals()

    def __str__(self) -> str:
        return "a plan of mine"

    def statistics(self) -> Totals:
        return self.totals

    def train(self) -> None:
        self.totals = Totals(self.totals.step + 1, self.totals.wire_bytes + 10, self.totals.dense_bytes + 100)


def test_a_step_holds_what_has_changed_since_the_last(tmp_path):
    heard: list[Event] = []
    handle = Handle()
    handle.train()  # before the recorder was made: not of this run
    recorder = Recorder(tmp_path, handle, {"method": "mine"}, is_writer=True, listener=heard.append)
    for loss in (2.0, float("nan"), 1.0):
        handle.train()
        recorder.step(loss=loss, lr=0.1, temperature=3)
    recorder.note("evaluation", accuracy=0.5)
    recorder.close(reason="stopped")
    recorder.close()
    run = read_run(tmp_path)
    assert [event["event"] for event in heard] == ["start", "step", "step", "step", "evaluation", "end"]
    assert [step["wire_bytes"] for step in run.steps] == [10, 10, 10]
    assert [step["loss"] for step in run.steps] == [2.0, None, 1.0]
    assert (run.steps[0]["exchange"], run.steps[0]["plan"]) == ("mine", "a plan of mine")
    assert run.steps[0]["temperature"] == 3
    assert [run.steps[0][name] for name in ("ratio", "gain", "latency_s")] == [None, None, None]
    assert run.saved == 0.9
    assert run.end is not None
    assert run.end["reason"] == "stopped"
    assert run.start["version"] == VERSION
    assert json.loads((tmp_path / "config.json").read_text())["method"] == "mine"


class LocalHandle(LocalOptimizer):
    """Local steps that have sent nothing yet, with decisions that are made up."""

    plan = Plan(local_steps=8)
    history: tuple[Decision, ...] = ()
    agreement, network = 0.4, None

    def __init__(self) -> None:
        pass

    def statistics(self) -> Statistics:
        return Statistics(step=0, exchanges={})


def test_decisions_about_exchanges_are_placed_at_the_step_of_training(tmp_path):
    handle = LocalHandle()
    recorder = Recorder(tmp_path, handle, is_writer=True)
    for step in range(24):
        if step == 16:
            handle.history = (decide(2, "latency", 0.6, Plan(), PHASES[0], PHASES[30], "allgather_topk"),)
        recorder.step(loss=1.0)
    recorder.close()
    run = read_run(tmp_path)
    (decision,) = run.decisions
    assert decision["step"] == 17
    assert decision["words"].startswith("step 17: latency rose")
    assert (run.steps[-1]["local_steps"], run.steps[-1]["agreement"]) == (8, 0.4)


def test_the_training_clock_stops_in_a_pause(tmp_path, monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 10.0, 12.0])
    monkeypatch.setattr("headway.report.recorder.time.perf_counter", lambda: next(clock))
    recorder = Recorder(tmp_path, Handle(), is_writer=True)  # at 0 s
    recorder.step(loss=1.0)  # at 1 s
    recorder.pause()  # at 3 s
    recorder.resume()  # at 10 s
    recorder.step(loss=1.0)  # at 12 s
    recorder.close()
    assert [step["time_s"] for step in read_run(tmp_path).steps] == [1.0, 5.0]


def test_a_resumed_run_continues_at_its_step_and_time(tmp_path):
    first = Recorder(tmp_path, Handle(), is_writer=True)
    first.step(loss=1.0)
    first.step(loss=1.0)
    first.close()
    second = Recorder(tmp_path, Handle(), is_writer=True, begin_at=(1, 100.0))
    second.step(loss=0.5)
    second.close()
    run = read_run(tmp_path)
    assert [(step["step"], step["loss"]) for step in run.steps] == [(1, 1.0), (2, 0.5)]
    assert run.time_s > 100


def test_other_ranks_write_nothing_and_keep_the_clock(tmp_path):
    recorder = Recorder(tmp_path / "run", Handle(), is_writer=False)
    recorder.step(loss=1.0)
    recorder.note("evaluation", accuracy=1.0)
    recorder.close()
    assert recorder.step_number == 1
    assert recorder.time_s > 0
    assert not (tmp_path / "run").exists()


def test_a_step_while_the_clock_is_stopped_is_an_error(tmp_path):
    recorder = Recorder(tmp_path, Handle(), is_writer=True)
    recorder.step(loss=1.0)
    recorder.pause()
    stood_at = recorder.time_s
    recorder.pause()
    assert recorder.time_s == stood_at
    with pytest.raises(ValueError, match="call resume"):
        recorder.step(loss=1.0)
    recorder.resume()
    recorder.step(loss=1.0)
    recorder.close()
