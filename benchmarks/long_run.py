"""Does anything grow? Thousands of DDP steps on loopback, with far less memory for lanes than the calls would fill.

2 workers, dense gradients by ring, bucket by bucket. The calls of a step are always the same, so the hook evicts lanes
at the start only; beside it an executor of the same size sums tensors of 40 sizes in random order, and evicts all the
time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

WORKER = Path(__file__).parent / "long_run_worker.py"
NUM_SAMPLES = 20
COLUMNS = {
    "step": "step",
    "kilobytes": "memory, kB",
    "num_files": "open files",
    "num_threads": "threads",
    "num_lanes": "lanes",
    "num_ids": "ids",
    "num_evicted_hook": "evicted, hook",
    "num_evicted_sums": "evicted, sums",
    "lane_bytes": "bytes kept",
    "step_ms": "ms a step",
}

Sample = dict[str, Any]


def row_of(sample: Sample) -> list[str]:
    """Return the cells of a sample."""
    return [f"{sample[key]:.1f}" if key == "step_ms" else f"{sample[key]:,}" for key in COLUMNS]


def run(num_steps: int, table: Table, timeout_s: float) -> list[Sample]:
    """Train on two workers; return what rank 0 found, and add it to the table while it runs."""
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(WORKER), f"{folder}/store", str(num_steps), str(num_steps // NUM_SAMPLES)]
        other = subprocess.Popen([*command, "1"], stdout=subprocess.DEVNULL)
        first = subprocess.Popen([*command, "0"], stdout=subprocess.PIPE, text=True)
        try:
            assert first.stdout is not None
            for line in first.stdout:
                samples.append(json.loads(line))
                table.add_row(*row_of(samples[-1]))
            if first.wait(timeout_s) or other.wait(timeout_s):
                raise RuntimeError("a worker failed: its output says why")
        finally:
            first.kill()
            other.kill()
    return samples


def verdict(samples: list[Sample]) -> str:
    """Compare the last quarter with the second one: in the first, histories of bounded length still fill."""
    quarter = len(samples) // 4
    before, after = samples[quarter : 2 * quarter], samples[-quarter:]

    def grew(key: str) -> int:
        return max(sample[key] for sample in after) - max(sample[key] for sample in before)

    kinds = ", ".join(f"{COLUMNS[key]} {grew(key):+,}" for key in ("kilobytes", "num_files", "num_threads", "num_ids"))
    return f"from the second quarter to the last: {kinds}"


def main(
    steps: Annotated[int, typer.Option(help="How many steps.")] = 20_000,
    json_path: Annotated[Path, typer.Option("--json", help="Where to write the figures.")] = Path(
        "build/long_run.json"
    ),
) -> None:
    """Train, print a table, and write the figures."""
    if steps < NUM_SAMPLES:
        raise typer.BadParameter(f"steps is {steps}, but must be {NUM_SAMPLES} or more")
    console = Console(width=140)
    table = Table(*COLUMNS.values())
    with Live(table, console=console):
        samples = run(steps, table, timeout_s=60)
    console.print(verdict(samples))
    json_path.parent.mkdir(exist_ok=True)
    json_path.write_text(json.dumps(samples, indent=1))


if __name__ == "__main__":
    typer.run(main)
