"""Does the live estimate follow the network? Training in the lab over c1 and c2, bandwidth scaled to what it can carry.

Target: 20 exchanges after each phase change, latency and bandwidth are within 20% of the link as the lab delivers it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from headway.lab import Lab, Scenario, load_scenario

WORKER = Path(__file__).with_name("estimates_worker.py")
NUM_HOSTS, BANDWIDTH_SCALE = 4, 0.04
STRETCH = {"c1": 0.5, "c2": 0.6}
"""So that phases have 25 and 24 steps."""
NUM_EXCHANGES = 20
LIMIT = 0.20
CONFIG = {"exchange": "allgather_topk", "ratio": 0.25, "fusion": "step", "interval": 5}
TIMEOUT_S = 900


def run(scenario: Scenario) -> list[dict[str, Any]]:
    """Return a comparison for each phase."""
    starts = [round(phase.start.at_step or 0) for phase in scenario.phases]
    rows: list[dict[str, Any]] = []

    def collect(_rank: int, line: str) -> None:
        if line.startswith("{"):
            rows.append(json.loads(line))

    check_after = [start + NUM_EXCHANGES for start in starts]
    command = [sys.executable, str(WORKER), json.dumps(CONFIG), json.dumps(check_after)]
    with Lab(NUM_HOSTS, scenario) as lab:
        result = lab.run(command, output=collect, timeout_s=TIMEOUT_S)
    if result.exit_code != 0:
        raise SystemExit(f"{scenario.name}: exit code {result.exit_code}")
    return rows


def errors(row: dict[str, Any]) -> tuple[float, float]:
    """Return by how much latency and bandwidth are off."""
    estimate, reference = row["estimate"]["link"], row["reference"]
    return tuple(estimate[name] / reference[name] - 1 for name in ("latency_s", "bandwidth_bps"))


def main(
    output: Annotated[Path, typer.Option(help="Where the figures go, as JSON.")] = Path("build/estimates.json"),
) -> None:
    """Compare in every phase of both scenarios; fail if the target is missed."""
    console = Console()
    found: dict[str, list[dict[str, Any]]] = {}
    output.parent.mkdir(parents=True, exist_ok=True)
    for name, stretch in STRETCH.items():
        scenario = load_scenario(name).scaled(bandwidth=BANDWIDTH_SCALE, time=stretch)
        found[name] = run(scenario)
        output.write_text(json.dumps(found, indent=1))
        table = Table("step", "ms: estimate", "real", "off", "Mbps: estimate", "real", "off", "changes", title=name)
        for row in found[name]:
            estimate, real = row["estimate"]["link"], row["reference"]
            latency, bandwidth = errors(row)
            table.add_row(
                str(row["step"]), f"{1e3 * estimate['latency_s']:.2f}", f"{1e3 * real['latency_s']:.2f}",
                f"{latency:+.0%}", f"{estimate['bandwidth_bps'] / 1e6:.1f}", f"{real['bandwidth_bps'] / 1e6:.1f}",
                f"{bandwidth:+.0%}", str(len(row["changes"])),
            )  # fmt: skip
        console.print(table)
    off = [abs(error) for rows in found.values() for row in rows for error in errors(row)]
    console.print(f"within {LIMIT:.0%}: {sum(error <= LIMIT for error in off)} of {len(off)}, worst {max(off):.0%}")
    raise SystemExit(int(max(off) > LIMIT))


if __name__ == "__main__":
    typer.run(main)
