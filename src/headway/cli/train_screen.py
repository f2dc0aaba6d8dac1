"""The screen of ``headway train``: live on a terminal, plain lines elsewhere; all on standard error."""

from __future__ import annotations

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headway.report.events import Event
from headway.train.progress import RunProgress
from headway.units import format_bytes, format_clock, format_duration, format_rate

_LINE_EVERY_S = 5.0
_PRINTED = ("decision", "evaluation", "phase", "notice", "checkpoint", "resume", "start")


class TrainScreen:
    """Shows the events of a run.

    Args:
        title: First line: what is trained, how and where.
        console: Console to print to; standard error by default.
    """

    def __init__(self, title: str, console: Console | None = None) -> None:
        self._title = title
        self._console = console or Console(stderr=True, highlight=False)
        self._progress = RunProgress()
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

    def restore(self, event: Event) -> None:
        self._progress.update(event)

    def show(self, event: Event) -> None:
        self._progress.update(event)
        if self._console.is_terminal:
            if event["event"] == "notice":
                self.note(event["text"])
            return
        if event["event"] in _PRINTED:
            self.note(line_of(event, self._progress))
        elif event["event"] == "step" and time.monotonic() - self._last_line_s > _LINE_EVERY_S:
            self._last_line_s = time.monotonic()
            self.note(line_of(event, self._progress))

    def show_output(self, rank: int, line: str) -> None:
        self.note(f"[{rank}] {line}")

    def note(self, text: str) -> None:
        if text:
            self._console.print(Text(text), soft_wrap=True)

    def _render(self) -> RenderableType:
        progress = self._progress
        parts: list[RenderableType] = [Text(self._title, style="bold"), _bar(progress)]
        if progress.latest:
            parts.append(_figures(progress))
        else:
            waited_s = time.monotonic() - self._started_s
            parts.append(Text(f"workers start, connect and measure the network: {waited_s:.0f} s", style="dim"))
        parts += [Text(words, style="dim") for words in progress.decisions]
        return Group(*parts)


def _bar(progress: RunProgress) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    total = progress.num_steps
    left = "" if progress.left_s is None else f"{format_clock(progress.left_s)} left"
    count = f"step {progress.step}" + ("" if total is None else f" of {total}")
    grid.add_row(ProgressBar(total=total or 1, completed=progress.step, width=40), count, Text(left, style="cyan"))
    return grid


def _figures(progress: RunProgress) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    latest = progress.latest
    loss = "" if progress.loss is None else f"{progress.loss:.3f}"
    accuracy = "not yet" if progress.accuracy is None else f"{progress.accuracy:.1%}"
    step_s = "" if progress.step_s is None else format_duration(progress.step_s)
    rows = [
        ("loss", loss, "accuracy", accuracy),
        ("step", step_s, "sent", f"{format_bytes(progress.wire_bytes)}, {progress.saved:.1%} saved"),
        ("link", link_words(latest), "network", "" if progress.phase is None else link_words(progress.phase)),
    ]
    for one, first, other, second in rows:
        known = second not in ("", "?")
        grid.add_row(Text(one, style="dim"), first, Text(other if known else "", style="dim"), second if known else "")
    return Group(grid, Text.assemble(("plan  ", "dim"), latest.get("plan") or ""))


def line_of(event: Event, progress: RunProgress) -> str:
    """Return an event as a line."""
    kind = event["event"]
    place = f"step {event.get('step', 0)}"
    if kind == "start":
        return (
            f"{event['num_ranks']} workers, {event['model']} of {event['num_parameters']:,} parameters, "
            f"{event['num_steps']} steps of {event['num_ranks']} x {event['batch_size']} samples"
        )
    if kind == "step":
        left = "" if progress.left_s is None else f", {format_clock(progress.left_s)} left"
        total = "" if progress.num_steps is None else f" of {progress.num_steps}"
        return f"{place}{total}: loss {_number(progress.loss)}, {format_duration(progress.step_s or 0)} a step{left}"
    if kind == "evaluation":
        figures = f"accuracy {event['accuracy']:.1%}, loss {_number(event['loss'])}"
        return f"{place}: {figures} on {event['num_samples']} samples"
    if kind == "phase":
        return f"{place}: the network is now {link_words(event)}"
    if kind == "checkpoint":
        return f"{place}: checkpoint {event['path']}"
    if kind == "resume":
        return f"{place} of {progress.num_steps}: resumed from here"
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
