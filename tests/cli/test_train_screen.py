"""What is shown of training: the live screen, plain lines, and the events that both are made from."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from headway.cli.train_screen import TrainScreen, line_of
from headway.cli.train_state import Follower, TrainState
from headway.report import EventLog

START = {
    "event": "start", "time_s": 0.0, "num_ranks": 4, "model": "cnn", "num_parameters": 1_663_370, "num_steps": 90,
    "batch_size": 16,
}  # fmt: skip
DECISION = {"event": "decision", "step": 3, "words": "step 3: bandwidth fell: dense -> all-gather top-k"}
PHASE = {"event": "phase", "step": 0, "latency_s": 0.03, "bandwidth_bps": 2e8}
EVALUATION = {"event": "evaluation", "step": 3, "accuracy": 0.875, "loss": 0.5, "num_samples": 360}


def step(number: int, loss: float | None = 2.0, **fields) -> dict:
    return {
        "event": "step", "time_s": 0.1 * number, "step": number, "step_s": 0.1, "loss": loss, "wire_bytes": 1_000_000,
        "dense_bytes": 10_000_000, "plan": "STAR top-k tree 1%", "latency_s": 0.029, "bandwidth_bps": 1.9e8, **fields,
    }  # fmt: skip


def shown(events: list[dict], *, is_terminal: bool) -> str:
    """Return what a screen shows after some events: all of its live picture, or its lines."""
    output = io.StringIO()
    console = Console(file=output, force_terminal=is_terminal, width=100, highlight=False, color_system=None)
    screen = TrainScreen("adaptive: digits on 4 workers, demo", console)
    if not is_terminal:
        with screen:
            for event in events:
                screen.show(event)
        return output.getvalue()
    for event in events:
        screen.state.take(event)
    console.print(screen._render())
    return output.getvalue()


def test_the_live_screen_has_all_that_a_user_wants_to_know():
    text = shown([START, PHASE, *map(step, range(1, 31)), DECISION, EVALUATION], is_terminal=True)
    for words in (
        "adaptive: digits on 4 workers, demo", "step 30 of 90", "0:06 left", "2.000", "87.5%", "100 ms",
        "30 MB, 90.0% saved", "29 ms, 190 Mbps", "30 ms, 200 Mbps", "STAR top-k tree 1%", DECISION["words"],
    ):  # fmt: skip
        assert words in text, words


def test_before_the_first_step_the_live_screen_says_what_it_waits_for():
    assert "workers start, meet, and measure the network" in shown([], is_terminal=True)


def test_without_a_terminal_there_are_lines():
    text = shown([PHASE, START, step(1), DECISION, EVALUATION], is_terminal=False)
    assert text.splitlines() == [
        "adaptive: digits on 4 workers, demo",
        "step 0: the network is now 30 ms, 200 Mbps",
        "4 workers, cnn of 1,663,370 parameters, 90 steps of 4 x 16 samples",
        DECISION["words"],
        "step 3: accuracy 87.5%, loss 0.500 on 360 samples",
    ]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_loss_that_is_not_finite_is_shown_as_such(is_terminal):
    events = [START, step(1), step(2, loss=None), {**EVALUATION, "loss": None}]
    assert "nan" in shown(events, is_terminal=is_terminal)


def test_the_time_left_goes_by_the_last_steps():
    state = TrainState()
    for event in [START, *(step(number, step_s=1.0 if number < 40 else 0.1) for number in range(1, 61))]:
        state.take(event)
    assert state.left_s == pytest.approx(3.0)
    assert state.saved == pytest.approx(0.9)
    state.take(step(61, loss=None))
    assert math.isnan(state.loss)
    state.take(step(62, loss=0.5))
    assert state.loss == 0.5


def test_a_resumed_run_counts_from_where_it_goes_on_and_to_its_new_end():
    state = TrainState()
    for event in (START, {"event": "resume", "step": 90, "num_steps": 120, "time_s": 9.0}):
        state.take(event)
    assert (state.step, state.num_steps) == (90, 120)
    assert line_of({"event": "resume", "step": 90}, state) == "step 90 of 120: going on from here"


def test_events_are_followed_as_they_are_written(tmp_path):
    log = EventLog(tmp_path)
    log.write("start", num_ranks=2)
    log.write("notice", step=1, text="of the life before")
    follower = Follower(tmp_path)
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


def test_nothing_is_read_where_nothing_was_written(tmp_path):
    assert Follower(tmp_path).read() == []
