"""What a user sees of training: a live screen on a terminal, plain lines elsewhere. All on standard error."""

from __future__ import annotations

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headway.cli.train_state import TrainState
from headway.report.events import Event
from headway.units import format_bytes, format_clock, format_duration, format_rate

_LINE_EVERY_S = 5.0
_TOLD = ("decision", "evaluation", "phase", "notice", "checkpoint", "resume", "start")


class TrainScreen:
    """Shows the events of a run.

    Args:
        title: What is trained, and where.
        console: Where to.
    """

    def __init__(self, title: str, console: Console | None = None) -> None:
        self._title = title
        self._console = console or Console(stderr=True, highlight=False)
        self.state = TrainState()
        self._started_s = self._last_line_s = time.monotonic()
        self._live = Live(console=self._console, get_renderable=self._render, transient=True, refresh_per_second=4)

    def __enter__(self) -> TrainScreen:
        if self._console.is_terminal:
            self._live.start()
        else:
            self.note(self._title)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, event: Event) -> None:
        """Take an event in; print a line of it where there is no live screen."""
        self.state.take(event)
        if self._console.is_terminal:
            if event["event"] == "notice":
                self.note(event["text"])
            return
        if event["event"] in _TOLD:
            self.note(line_of(event, self.state))
        elif event["event"] == "step" and time.monotonic() - self._last_line_s > _LINE_EVERY_S:
            self._last_line_s = time.monotonic()
            self.note(line_of(event, self.state))

    def show_output(self, rank: int, line: str) -> None:
        """Print what a worker has printed."""
        self.note(f"[{rank}] {line}")

    def note(self, text: str) -> None:
        """Print a line, above the live screen if there is one."""
        if text:
            self._console.print(Text(text), soft_wrap=True)

    def _render(self) -> RenderableType:
        state = self.state
        parts: list[RenderableType] = [Text(self._title, style="bold"), _bar(state)]
        if state.latest:
            parts.append(_figures(state))
        else:
            waited_s = time.monotonic() - self._started_s
            parts.append(Text(f"workers start, meet, and measure the network: {waited_s:.0f} s", style="dim"))
        parts += [Text(words, style="dim") for words in state.decisions]
        return Group(*parts)


def _bar(state: TrainState) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    total = state.num_steps
    left = "" if state.left_s is None else f"{format_clock(state.left_s)} left"
    count = f"step {state.step}" + ("" if total is None else f" of {total}")
    grid.add_row(ProgressBar(total=total or 1, completed=state.step, width=40), count, Text(left, style="cyan"))
    return grid


def _figures(state: TrainState) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    latest = state.latest
    loss = "" if state.loss is None else f"{state.loss:.3f}"
    accuracy = "not yet" if state.accuracy is None else f"{state.accuracy:.1%}"
    step_s = "" if state.step_s is None else format_duration(state.step_s)
    rows = [
        ("loss", loss, "accuracy", accuracy),
        ("step", step_s, "sent", f"{format_bytes(state.wire_bytes)}, {state.saved:.1%} saved"),
        ("link", link_words(latest), "network", "" if state.phase is None else link_words(state.phase)),
    ]
    for one, first, other, second in rows:
        known = second not in ("", "?")
        grid.add_row(Text(one, style="dim"), first, Text(other if known else "", style="dim"), second if known else "")
    return Group(grid, Text.assemble(("plan  ", "dim"), latest.get("plan") or ""))


def line_of(event: Event, state: TrainState) -> str:
    """Return an event as a line."""
    kind = event["event"]
    place = f"step {event.get('step', 0)}"
    if kind == "start":
        return (
            f"{event['num_ranks']} workers, {event['model']} of {event['num_parameters']:,} parameters, "
            f"{event['num_steps']} steps of {event['num_ranks']} x {event['batch_size']} samples"
        )
    if kind == "step":
        left = "" if state.left_s is None else f", {format_clock(state.left_s)} left"
        total = "" if state.num_steps is None else f" of {state.num_steps}"
        return f"{place}{total}: loss {_number(state.loss)}, {format_duration(state.step_s or 0)} a step{left}"
    if kind == "evaluation":
        figures = f"accuracy {event['accuracy']:.1%}, loss {_number(event['loss'])}"
        return f"{place}: {figures} on {event['num_samples']} samples"
    if kind == "phase":
        return f"{place}: the network is now {link_words(event)}"
    if kind == "checkpoint":
        return f"{place}: checkpoint {event['path']}"
    if kind == "resume":
        return f"{place} of {state.num_steps}: going on from here"
    return str(event.get("words") or f"{place}: {event.get('text', '')}")


def _number(value: float | None) -> str:
    return "nan" if value is None else f"{value:.3f}"  # events have null for what is not finite


def link_words(event: Event) -> str:
    """Return latency and bandwidth for people, or "?" where they are not known.

    >>> link_words({"latency_s": 0.02, "bandwidth_bps": 1e8})
    '20 ms, 100 Mbps'
    """
    latency_s, bandwidth_bps = event.get("latency_s"), event.get("bandwidth_bps")
    if latency_s is None:
        return "?"
    return format_duration(latency_s) + ("" if bandwidth_bps is None else f", {format_rate(bandwidth_bps)}")
