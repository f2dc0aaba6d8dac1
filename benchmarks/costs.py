"""How accurate are predicted exchange times? Every exchange, on emulated networks, against the measured time.

Targets: median error at most 10%, 90th percentile at most 25%, over 4 and 8 hosts, 1, 20 and 50 ms, 40, 100 and 1000
Mbps, all exchanges, ratios 0.001 to 0.1.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from headway.lab import Lab, LinkSpec, Scenario

WORKER = Path(__file__).with_name("costs_worker.py")
HOSTS, LATENCIES_MS, RATES_MBPS = (4, 8), (1, 20, 50), (40, 100, 1000)
MEDIAN_LIMIT, P90_LIMIT = 0.10, 0.25
TIMEOUT_S = 600


def run(num_hosts: int, latency_ms: float, mbps: float) -> list[dict[str, Any]]:
    """Return the rows of one network."""
    rows: list[dict[str, Any]] = []

    def collect(_rank: int, line: str) -> None:
        if line.startswith("{"):
            rows.append(json.loads(line))

    link = LinkSpec(latency_s=latency_ms / 1e3, bandwidth_bps=mbps * 1e6)
    with Lab(num_hosts, Scenario(link=link)) as lab:
        result = lab.run([sys.executable, str(WORKER)], output=collect, timeout_s=TIMEOUT_S)
    if result.exit_code != 0:
        raise SystemExit(f"{num_hosts} hosts, {latency_ms} ms, {mbps} Mbps: exit code {result.exit_code}")
    found, rows = rows[0], rows[1:]
    return [row | {"hosts": num_hosts, "ms": latency_ms, "mbps": mbps, "found": found} for row in rows]


def error(row: dict[str, Any]) -> float:
    """Return by how much a prediction was off, relative to what was measured."""
    return row["predicted_s"] / row["seconds"] - 1


def summary(rows: list[dict[str, Any]], by: str) -> Table:
    """Return median and 90th percentile of the errors, by one of the columns."""
    groups: dict[Any, list[float]] = defaultdict(list)
    for row in rows:
        groups[row[by]].append(error(row))
    table = Table("", "exchanges", "median error", "90th percentile", "median, signed", title=f"by {by}")
    for key, errors in [*groups.items(), ("all", [error(row) for row in rows])]:
        sizes = np.abs(errors)
        table.add_row(
            str(key), str(len(errors)), f"{np.median(sizes):.1%}", f"{np.quantile(sizes, 0.9):.1%}",
            f"{np.median(errors):+.1%}",
        )  # fmt: skip
    return table


def main(
    output: Annotated[Path, typer.Option(help="Where the figures go, as JSON.")] = Path("build/costs.json"),
    hosts: Annotated[list[int], typer.Option(help="Numbers of hosts.")] = HOSTS,
    latency_ms: Annotated[list[int], typer.Option(help="Latencies, in ms.")] = LATENCIES_MS,
    mbps: Annotated[list[int], typer.Option(help="Bandwidths, in Mbps.")] = RATES_MBPS,
) -> None:
    """Predict and measure on every network; fail if a target is missed."""
    console = Console()
    networks = list(itertools.product(hosts, latency_ms, mbps))
    rows: list[dict[str, Any]] = []
    output.parent.mkdir(parents=True, exist_ok=True)
    for network in networks:
        rows += run(*network)
        here = [error(row) for row in rows[-20:]]
        console.print(f"{network}: median error {np.median(np.abs(here)):.1%}, worst {max(here, key=abs):+.1%}")
        output.write_text(json.dumps(rows, indent=1))
    for column in ("exchange", "hosts", "ms", "mbps", "ratio"):
        console.print(summary(rows, column))
    sizes = np.abs([error(row) for row in rows])
    missed = np.median(sizes) > MEDIAN_LIMIT or np.quantile(sizes, 0.9) > P90_LIMIT
    console.print("a target is missed" if missed else "all targets hold")
    raise SystemExit(int(missed))


if __name__ == "__main__":
    typer.run(main)
