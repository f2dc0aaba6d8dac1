"""The screen of ``headway train``: live on a terminal, lines elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headway.cli.train_screen import TrainScreen, line_of
from headway.train.progress import RunProgress

START = {
    "event": "start", "time_s": 0.0, "num_ranks": 4, "model": "cnn", "num_parameters": 1_663_370, "num_steps": 90,
    "batch_size": 16,
}  # fmt: skip
DECISION = {"event": "decision", "step": 3, "words": "step 3: bandwidth fell: dense -> all-gather top-k"}
PHASE = {"event": "phase", "step": 0, "latency_s": 0.03, "bandwidth_bps": 2e8}
RESUME = {"event": "resume", "step": 90, "num_steps": 120, "time_s": 9.0}
EVALUATION = {"event": "evaluation", "step": 3, "accuracy": 0.875, "loss": 0.5, "num_samples": 360}


def step(number: int, loss: float | None = 2.0, **fields) -> dict:
    return {
        "event": "step", "time_s": 0.1 * number, "step": number, "step_s": 0.1, "loss": loss, "wire_bytes": 1_000_000,
        "dense_bytes": 10_000_000, "plan": "STAR top-k tree 1%", "latency_s": 0.029, "bandwidth_bps": 1.9e8, **fields,
    }  # fmt: skip


def shown(events: list[dict], *, is_terminal: bool) -> str:
    """Return what a screen shows after some events: the whole live screen, or its lines."""
    output = io.StringIO()
    console = Console(file=output, force_terminal=is_terminal, width=100, highlight=False, color_system=None)
    screen = TrainScreen("adaptive: digits on 4 workers, demo", console)
    if not is_terminal:
        with screen:
            for event in events:
                screen.show(event)
        return output.getvalue()
    for event in events:
        screen.restore(event)
    console.print(screen._render())
    return output.getvalue()


def test_the_live_screen_has_progress_figures_link_plan_and_decisions():
    text = shown([START, PHASE, *map(step, range(1, 31)), DECISION, EVALUATION], is_terminal=True)
    for words in (
        "adaptive: digits on 4 workers, demo", "step 30 of 90", "0:06 left", "2.000", "87.5%", "100 ms",
        "30 MB, 90.0% saved", "29 ms, 190 Mbps", "30 ms, 200 Mbps", "STAR top-k tree 1%", DECISION["words"],
    ):  # fmt: skip
        assert words in text, words


def test_before_the_first_step_the_live_screen_says_what_workers_do():
    assert "workers start, connect and measure the network" in shown([], is_terminal=True)


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
def test_a_loss_that_is_not_finite_is_shown_as_nan(is_terminal):
    events = [START, step(1), step(2, loss=None), {**EVALUATION, "loss": None}]
    assert "nan" in shown(events, is_terminal=is_terminal)


def test_a_resumed_run_says_where_it_continues():
    progress = RunProgress()
    for event in (START, RESUME):
        progress.update(event)
    assert line_of(RESUME, progress) == "step 90 of 120: resumed from here"
