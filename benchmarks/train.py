"""What a new user sees: the speed-up and duration of the demo, the cost of recording a run, the size of its page.

The demo runs several times, as ``make demo`` runs it. Recording is measured with a training loop of one process,
alternately with and without a recorder. Limits: three minutes for the demo; 1% of a step of 30 ms for recording.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from headway.report import Recorder, read_run, write_page

DEMO = "train --workers 4 --scenario demo --compare ddp,adaptive --steps 90 --eval-every 30 --checkpoint-every 0 --json"
NUM_STEPS = 2000


class Traffic:
    """A handle that counts steps, like that of plain DDP."""

    def __init__(self) -> None:
        self.num_steps = 0

    def statistics(self) -> Any:
        """Return totals."""
        return SimpleNamespace(step=self.num_steps, wire_bytes=self.num_steps * 1000, dense_bytes=self.num_steps * 1000)


def run_demo(folder: Path) -> tuple[float, list[dict[str, Any]]]:
    """Return the duration of the demo, and its summary of each run."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "headway", *DEMO.split(), "--output", str(folder)]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return time.perf_counter() - start, json.loads(found.stdout)


def loop_s(recorder: Recorder | None, traffic: Traffic) -> float:
    """Return the mean time of a nearly empty step, with or without a recorder."""
    x = torch.ones(64, 64)
    start = time.perf_counter()
    for _ in range(NUM_STEPS):
        loss = (x @ x).sum().item()
        traffic.num_steps += 1
        if recorder is not None:
            recorder.step(loss=loss, lr=0.1)
    return (time.perf_counter() - start) / NUM_STEPS


def recording(folder: Path, rounds: int) -> tuple[float, float]:
    """Return the time that recording adds to a step, and the bytes that it writes per step."""
    traffic = Traffic()
    recorder = Recorder(folder, traffic, is_writer=True)
    added = [loop_s(recorder, traffic) - loop_s(None, traffic) for _ in range(rounds)]
    recorder.close()
    size = (folder / "events.jsonl").stat().st_size
    return statistics.median(added), size / (rounds * NUM_STEPS)


def main(
    demos: Annotated[int, typer.Option(help="Number of runs of the demo.")] = 3,
    rounds: Annotated[int, typer.Option(help="Number of recording rounds, each with 2,000 steps.")] = 5,
) -> None:
    """Measure, and print tables."""
    console = Console()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = Table("number", "took", "DDP", "adaptive", "faster", "saved", "accuracy, DDP", "adaptive")
        for number in range(demos):
            took_s, (plain, ours) = run_demo(folder / f"demo-{number}")
            table.add_row(
                str(number + 1),
                f"{took_s:.0f} s",
                f"{plain['time_s']:.1f} s",
                f"{ours['time_s']:.1f} s",
                f"{ours['speedup']:.2f}x",
                f"{ours['saved']:.1%}",
                f"{plain['accuracy']:.1%}",
                f"{ours['accuracy']:.1%}",
            )
        console.print(table)
        added_s, bytes_a_step = recording(folder / "recorded", rounds)
        console.print(f"recording: {1e6 * added_s:.0f} µs and {bytes_a_step:.0f} bytes a step")
        start = time.perf_counter()
        runs = [read_run(folder / "recorded")]
        read_s = time.perf_counter() - start
        write_page(runs, folder / "page.html")
        size = (folder / "page.html").stat().st_size
        console.print(
            f"page of {len(runs[0].steps):,} steps: read {read_s:.2f} s, "
            f"written {time.perf_counter() - start - read_s:.2f} s, {size / 1e6:.1f} MB"
        )


if __name__ == "__main__":
    typer.run(main)
