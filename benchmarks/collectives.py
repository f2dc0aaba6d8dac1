"""Our collectives against Gloo's own, on emulated hosts; and the cost of a call without a network.

A cell is a number of hosts, a link and a payload: what each rank holds at the end. Contenders whose
alpha-beta time is more than 1.6 times that of the best are left out of a cell.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from headway.collectives import ALGORITHMS, NATIVE, Collective, build_for, critical_path
from headway.lab import Lab, LinkSpec, SaturationWarning, Scenario

FOLDER = Path(__file__).parent
NUM_HOSTS = (4, 6, 8)
LATENCIES_MS = (1.0, 20.0, 50.0)
RATES_MBPS = (40.0, 100.0, 1000.0)
PAYLOADS = (4096, 65_536, 1 << 20, 1 << 24)
HOPELESS = 1.6


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Network, collective and payload of a measurement."""

    collective: str
    num_hosts: int
    latency_ms: float
    mbps: float
    num_bytes: int

    @property
    def link(self) -> LinkSpec:
        """The link between any two hosts."""
        return LinkSpec(latency_s=self.latency_ms / 1e3, bandwidth_bps=self.mbps * 1e6)

    def predicted_s(self, algorithm: str) -> float:
        """Return the alpha-beta time of an algorithm of ours."""
        collective = Collective(self.collective)
        num_bytes = self.num_bytes // self.num_hosts if collective is Collective.ALL_GATHER else self.num_bytes
        path = critical_path(build_for(collective, algorithm, self.num_hosts, num_bytes))
        return path.num_rounds * self.latency_ms / 1e3 + path.num_payloads * num_bytes * 8 / (self.mbps * 1e6)

    def contenders(self) -> list[str]:
        """Return the algorithms worth a measurement here, and native."""
        predicted = {name: self.predicted_s(name) for name in ALGORITHMS[Collective(self.collective)]}
        limit = HOPELESS * min(predicted.values())
        return [NATIVE, *(name for name, seconds in predicted.items() if seconds <= limit)]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Measured seconds by algorithm in a cell."""

    cell: Cell
    seconds: dict[str, float]

    @property
    def best(self) -> str:
        """The fastest algorithm of ours."""
        return min((name for name in self.seconds if name != NATIVE), key=self.seconds.__getitem__)

    @property
    def speedup(self) -> float:
        """Gloo's time over that of our best."""
        return self.seconds[NATIVE] / self.seconds[self.best]

    @property
    def over_predicted(self) -> float:
        """Our best time over the alpha-beta time of its schedule."""
        return self.seconds[self.best] / self.cell.predicted_s(self.best)


def cells_of(num_hosts: int, latency_ms: float, mbps: float) -> list[Cell]:
    """Return the cells of one network; broadcasts among eight only, to keep the run short."""
    collectives = ["all_reduce", "all_gather"] + ["broadcast"] * (num_hosts == 8)
    return [
        Cell(collective=collective, num_hosts=num_hosts, latency_ms=latency_ms, mbps=mbps, num_bytes=num_bytes)
        for collective in collectives
        for num_bytes in PAYLOADS
    ]


def measure(cells: list[Cell], num_calls: int) -> list[Outcome]:
    """Run all contenders of the cells of one network in one run."""
    contenders = [(cell.collective, name, cell.num_bytes) for cell in cells for name in cell.contenders()]
    seconds: dict[tuple[str, int], dict[str, float]] = {}

    def note(_rank: int, line: str) -> None:
        if line.startswith("{"):
            found = json.loads(line)
            seconds.setdefault((found["collective"], found["num_bytes"]), {})[found["algorithm"]] = found["median_s"]

    first = cells[0]
    worker = str(FOLDER / "collectives_worker.py")
    command = [sys.executable, worker, json.dumps(contenders), str(first.latency_ms / 1e3), str(num_calls)]
    with Lab(first.num_hosts, Scenario(link=first.link)) as lab, warnings.catch_warnings():
        warnings.simplefilter("ignore", SaturationWarning)  # the ratio to the alpha-beta time shows what it does
        result = lab.run(command, output=note, timeout_s=1800)
    if result.exit_code != 0:
        raise RuntimeError(f"rank {result.first_failed} failed: {result.tails[result.first_failed or 0]}")
    return [Outcome(cell=cell, seconds=seconds[cell.collective, cell.num_bytes]) for cell in cells]


def networks(quick: bool) -> Iterator[tuple[int, float, float]]:
    """Yield (hosts, ms, Mbps)."""
    yield from [(8, 20.0, 1000.0)] if quick else product(NUM_HOSTS, LATENCIES_MS, RATES_MBPS)


def dispatch_us() -> dict[str, float]:
    """Time a 4-byte all-reduce between two processes on loopback, each algorithm in one run."""
    with tempfile.NamedTemporaryFile() as store:
        command = [sys.executable, str(FOLDER / "dispatch_worker.py"), store.name]
        other = subprocess.Popen([*command, "1"], stdout=subprocess.DEVNULL)
        result = subprocess.run([*command, "0"], stdout=subprocess.PIPE, text=True, check=True, timeout=300)
        other.wait(timeout=60)
    return json.loads(result.stdout.splitlines()[-1])


def size(num_bytes: int) -> str:
    """Return a payload size as text."""
    return f"{num_bytes // 1024} kB" if num_bytes < 1 << 20 else f"{num_bytes >> 20} MB"


def table_of(outcomes: Iterable[Outcome]) -> Table:
    """Return a table of our best algorithm in every cell."""
    table = Table("collective", "hosts", "ms", "Mbps", "payload", "best", "ms", "Gloo ms", "faster", "over alpha-beta")
    for outcome in outcomes:
        cell = outcome.cell
        table.add_row(
            cell.collective,
            str(cell.num_hosts),
            f"{cell.latency_ms:g}",
            f"{cell.mbps:g}",
            size(cell.num_bytes),
            outcome.best,
            f"{outcome.seconds[outcome.best] * 1e3:.1f}",
            f"{outcome.seconds[NATIVE] * 1e3:.1f}",
            f"{outcome.speedup:.2f}",
            f"{outcome.over_predicted:.2f}",
        )
    return table


def verdicts(outcomes: list[Outcome]) -> list[str]:
    """Compare the outcomes with the targets; one line each."""
    far = [outcome for outcome in outcomes if outcome.cell.latency_ms >= 20]
    lines = []
    for what, worst, limit, holds in (
        ("ours over Gloo", max(1 / o.speedup for o in far), 1.05, lambda o: 1 / o.speedup <= 1.05),
        ("ours over alpha-beta", max(o.over_predicted for o in far), 1.25, lambda o: o.over_predicted <= 1.25),
    ):
        good = sum(map(holds, far))
        lines.append(f"{what} at 20 ms or more: {good} of {len(far)} cells within {limit}, worst {worst:.2f}")
    for collective, least in (("all_reduce", 4.0), ("all_gather", 3.0)):
        cell = [
            o for o in far if (o.cell.collective, o.cell.num_hosts, o.cell.num_bytes) == (collective, 8, 4096)
            and o.cell.latency_ms == 20
        ]  # fmt: skip
        slowest = min((o.speedup for o in cell), default=float("nan"))
        lines.append(f"{collective}, 4 kB, 8 hosts, 20 ms: at least {slowest:.1f}x faster than Gloo, limit {least:g}x")
    return lines


def main(
    quick: Annotated[bool, typer.Option(help="One network only.")] = False,
    calls: Annotated[int, typer.Option(help="Calls per algorithm; the median counts.")] = 3,
    output: Annotated[Path, typer.Option(help="Output file.")] = Path("build/collectives.json"),
) -> None:
    """Measure, print a table, and write the figures; benchmarks/collectives_map.py draws them."""
    console = Console()
    dispatch = dispatch_us()
    console.print({name: f"{us:.0f} us" for name, us in dispatch.items()})
    outcomes: list[Outcome] = []
    for network in networks(quick):
        found = measure(cells_of(*network), calls)
        console.print(table_of(found))
        outcomes += found
        output.parent.mkdir(exist_ok=True)
        record = {"dispatch_us": dispatch, "outcomes": [asdict(outcome) for outcome in outcomes]}
        output.write_text(json.dumps(record, indent=1))
    for line in verdicts(outcomes):
        console.print(line)


if __name__ == "__main__":
    typer.run(main)
