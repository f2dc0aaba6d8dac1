"""The screen of ``headway emulate``: lines of the workers on standard output, those of the lab on standard error."""

from __future__ import annotations

import io
import sys
import threading

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from headway.lab import Action, Progress, RunResult, Scenario
from headway.units import format_duration, format_rate

_UPDATE_S = 0.2


class EmulateScreen:
    """Prints lines with the rank in front; on a terminal, a live line has time, phase and throughput."""

    def __init__(self, scenario: Scenario, *, quiet: bool) -> None:
        self._scenario = scenario
        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(
            console=self._console, transient=True, refresh_per_second=5, redirect_stdout=False, redirect_stderr=False
        )
        self._shares_terminal = self._console.is_terminal and sys.stdout.isatty()
        self._lock = threading.Lock()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # workers may print what our encoding has not
        self._last_s, self._last_bytes = 0.0, 0

    def __enter__(self) -> EmulateScreen:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show_line(self, rank: int, line: str) -> None:
        """Print a worker's line."""
        if rank != 0 and self._quiet:
            return
        if self._shares_terminal:  # above the live line, without markup
            self._console.print(Text(f"[{rank}] {line}"), soft_wrap=True)
            return
        with self._lock:
            sys.stdout.write(f"[{rank}] {line}\n")
            sys.stdout.flush()

    def show_progress(self, progress: Progress) -> None:
        """Update the live line."""
        elapsed_s = progress.elapsed_s - self._last_s
        if not self._live.is_started or elapsed_s < _UPDATE_S:
            return
        num_bytes = int(progress.counters.num_bytes.sum())
        rate_bps = 8 * (num_bytes - self._last_bytes) / elapsed_s
        self._last_s, self._last_bytes = progress.elapsed_s, num_bytes
        parts = [f"{progress.elapsed_s:.0f} s", self._phase(progress.phase)]
        parts += [] if progress.step is None else [f"step {progress.step}"]
        parts += [format_rate(rate_bps), f"{int(progress.counters.num_packets.sum()):,} packets"]
        parts += [f"relay {progress.load.cpu_share:.0%}" + (" SATURATED" if progress.load.is_saturated else "")]
        self._live.update(Text("  ".join(parts), style="dim"))

    def show_action(self, action: Action) -> None:
        """Print that a phase has begun, or what happened to ranks."""
        if action.kind != "phase":
            self.note(f"{action.kind} {', '.join(f'rank {rank}' for rank in action.ranks)}")
        elif self._scenario.phases:
            self.note(self._phase(action.phase))

    def show_end(self, result: RunResult) -> None:
        """Print which rank failed, and its last lines if they have not been shown."""
        if result.first_failed is None:
            return
        self.note(f"rank {result.first_failed} failed with exit code {result.exit_code}")
        if self._quiet and result.first_failed != 0:
            for line in result.tails[result.first_failed]:
                typer.echo(f"[{result.first_failed}] {line}", err=True)

    def note(self, text: str) -> None:
        """Print a line of the lab."""
        self._console.print(f"headway emulate: {text}", markup=False, soft_wrap=True)

    def _phase(self, number: int | None) -> str:
        if number is None:
            return self._scenario.name
        link, default = self._scenario.phases[number].link, self._scenario.link
        latency_s = default.latency_s if link.latency_s is None else link.latency_s
        rate_bps = default.bandwidth_bps if link.bandwidth_bps is None else link.bandwidth_bps
        parts = [f"{self._scenario.name} phase {number + 1} of {len(self._scenario.phases)}"]
        parts += [] if latency_s is None else [format_duration(latency_s)]
        parts += [] if rate_bps is None else [format_rate(rate_bps)]
        return ", ".join(parts)
