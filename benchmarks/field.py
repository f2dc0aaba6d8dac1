"""What differs in the field: the first steps of a large model on a slow line, and batch norm far away.

Each contender is a run of its own on emulated hosts; with ``--against`` that of another checkout is measured too.
"""

from __future__ import annotations

import json
import statistics
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from headway.lab import Lab, LinkSpec, SaturationWarning, Scenario

FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model on a network."""

    model: str
    num_hosts: int
    latency_ms: float
    mbps: float
    num_steps: int
    contenders: tuple[str, ...]

    @property
    def network(self) -> str:
        """The network in words."""
        return f"{self.num_hosts} hosts, {self.latency_ms:g} ms, {self.mbps:g} Mbps"


WITH_HOOK = ("all-gather 1%", "adaptive")
"""Contenders that another checkout has too."""
CASES = {
    "first-steps": Case(model="5M", num_hosts=4, latency_ms=20, mbps=20, num_steps=10, contenders=WITH_HOOK),
    "large": Case(model="124M", num_hosts=2, latency_ms=5, mbps=200, num_steps=8, contenders=WITH_HOOK),
    "batch-norm": Case(
        model="resnet",
        num_hosts=8,
        latency_ms=50,
        mbps=1000,
        num_steps=60,
        contenders=("DDP", "buffers by DDP", "all-gather 1%"),
    ),
}


def measure(case: Case, contender: str, source: Path | None) -> dict[str, Any]:
    """Return what rank 0 says: the seconds of every step, and the plan."""
    said: dict[str, Any] = {}

    def note(_rank: int, line: str) -> None:
        if line.startswith("{"):
            said.update(json.loads(line))

    link = LinkSpec(latency_s=case.latency_ms / 1e3, bandwidth_bps=case.mbps * 1e6)
    command = [sys.executable, str(FOLDER / "field_worker.py"), case.model, contender, str(case.num_steps)]
    env = {} if source is None else {"PYTHONPATH": str(source.resolve())}
    with Lab(case.num_hosts, Scenario(link=link)) as lab, warnings.catch_warnings():
        warnings.simplefilter("ignore", SaturationWarning)
        result = lab.run(command, env=env, output=note, timeout_s=900)
    if result.exit_code != 0:
        raise RuntimeError(f"rank {result.first_failed} failed: {result.tails[result.first_failed or 0]}")
    return said


def table_of(name: str, case: Case, found: dict[str, dict[str, Any]]) -> Table:
    """Show the first steps, and the median of those after them."""
    table = Table("contender", *(f"step {step}" for step in range(4)), "median after", "plan", title="")
    table.title = f"{name}: {next(iter(found.values()))['num_parameters']:,} parameters, {case.network}; seconds"
    for contender, said in found.items():
        seconds = said["seconds"]
        later = statistics.median(seconds[6:])
        table.add_row(contender, *(f"{each:.2f}" for each in seconds[:4]), f"{later:.3f}", said["plan"])
    return table


def main(
    cases: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(CASES)}; all by default.")] = None,
    against: Annotated[Path | None, typer.Option(help="Measure another checkout too: its src folder.")] = None,
    output: Annotated[Path, typer.Option(help="Where the figures go.")] = Path("build/field.json"),
) -> None:
    """Measure, print a table a case, and write the figures."""
    if unknown := set(cases or ()) - set(CASES):
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: there are {', '.join(CASES)}")
    console = Console(width=160)
    figures: dict[str, dict[str, dict[str, Any]]] = {}
    for name in cases or CASES:
        case = CASES[name]
        found: dict[str, dict[str, Any]] = {}
        for contender in case.contenders:
            if against is not None and contender in WITH_HOOK:
                found[f"{contender}, before"] = measure(case, contender, against)
            found[contender] = measure(case, contender, None)
        console.print(table_of(name, case, found))
        figures[name] = found
        output.parent.mkdir(exist_ok=True)
        output.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    typer.run(main)
