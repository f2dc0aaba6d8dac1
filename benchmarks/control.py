"""What does control cost? Steps of an adaptive run over steps with the same plan fixed and no councils, calm network.

Limits: 1% of a step at 1 ms, 3% at 50 ms.
"""

from __future__ import annotations

import json
import statistics
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from headway.lab import Lab, LinkSpec, SaturationWarning, Scenario

WORKER = Path(__file__).with_name("control_worker.py")
NETWORKS = ((1, 1000, 0.01), (1, 40, 0.01), (50, 40, 0.03), (50, 1000, 0.03))
"""One-way latency in ms, Mbps, and the limit."""


def measure(num_hosts: int, latency_ms: float, mbps: float) -> dict[str, Any]:
    """Return what the worker says."""
    said: list[dict[str, Any]] = []

    def note(_rank: int, line: str) -> None:
        if line.startswith("{"):
            said.append(json.loads(line))

    link = LinkSpec(latency_s=latency_ms / 1e3, bandwidth_bps=mbps * 1e6)
    with Lab(num_hosts, Scenario(link=link)) as lab, warnings.catch_warnings():
        warnings.simplefilter("ignore", SaturationWarning)
        result = lab.run([sys.executable, str(WORKER)], output=note, timeout_s=900)
    if result.exit_code != 0:
        raise RuntimeError(f"rank {result.first_failed} failed: {result.tails[result.first_failed or 0]}")
    return said[0]


def main(num_hosts: Annotated[int, typer.Option(min=2, help="How many workers.")] = 4) -> None:
    """Compare on every network."""
    console = Console(width=160)
    for latency_ms, mbps, limit in NETWORKS:
        found = measure(num_hosts, latency_ms, mbps)
        ratios = sorted(tuned / fixed for tuned, fixed in found["blocks"])
        tuned_s, fixed_s = (statistics.median(block[index] for block in found["blocks"]) for index in (0, 1))
        middle, spread = statistics.median(ratios), (ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4])
        console.print(
            f"{latency_ms} ms, {mbps} Mbps: control adds {middle - 1:+.1%} (limit {limit:.0%}; quartiles "
            f"{spread[0] - 1:+.1%} to {spread[1] - 1:+.1%}), {tuned_s * 1e3:.0f} ms over {fixed_s * 1e3:.0f} ms, "
            f"{found['plan']['exchange']} {found['plan']['ratio']:.4f}, {len(found['words'])} switches before"
        )


if __name__ == "__main__":
    typer.run(main)
