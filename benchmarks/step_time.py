"""How long is a step? Plain DDP, what a user would pick today, and our exchanges at 1%, on emulated networks.

8 workers, the CNN of 1.66M parameters, 16 images each; all contenders of a network in one run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from headway.lab import Lab, Link, SaturationWarning, Scenario

FOLDER = Path(__file__).parent
NUM_HOSTS = 8
NETWORKS = {(ms, mbps): f"{ms} ms, {mbps} Mbps" for ms in (1, 50) for mbps in (40, 1000)}

Times = dict[str, dict[str, object]]


def measure(latency_ms: float, mbps: float) -> Times:
    """Return what the worker says of every contender on one network."""
    found: Times = {}

    def note(_rank: int, line: str) -> None:
        if line.startswith("{"):
            said = json.loads(line)
            found[said["name"]] = said

    link = Link(latency_s=latency_ms / 1e3, bandwidth_bps=mbps * 1e6)
    with Lab(NUM_HOSTS, Scenario(link=link)) as lab, warnings.catch_warnings():
        warnings.simplefilter("ignore", SaturationWarning)
        result = lab.run([sys.executable, str(FOLDER / "step_time_worker.py")], output=note, timeout_s=1200)
    if result.exit_code != 0:
        raise RuntimeError(f"rank {result.first_failed} failed: {result.tails[result.first_failed or 0]}")
    return found


def hook_cost() -> dict[str, Any]:
    """Return the time of a step with a hook over one without, on loopback, and what the tuner chose."""
    with tempfile.NamedTemporaryFile() as store:
        command = [sys.executable, str(FOLDER / "hook_cost_worker.py"), store.name]
        other = subprocess.Popen([*command, "1"], stdout=subprocess.DEVNULL)
        try:
            ours = subprocess.run([*command, "0"], stdout=subprocess.PIPE, text=True, check=True, timeout=600)
            other.wait(timeout=60)
        finally:
            other.kill()
    return json.loads(ours.stdout.splitlines()[-1])


def table_of(results: dict[str, Times]) -> Table:
    """Show ms a step, a column a network."""
    table = Table("contender", *results)
    for name in next(iter(results.values())):
        cells = [f"{times[name]['seconds'] * 1e3:.0f} {times[name]['chosen']}".strip() for times in results.values()]
        table.add_row(name, *cells)
    return table


def verdict(network: str, times: Times) -> str:
    """Hold our best against the best of the others, and against DDP."""
    seconds = {name: said["seconds"] for name, said in times.items()}
    best = min((name for name in seconds if name.startswith("ours")), key=seconds.__getitem__)
    other = min((name for name in seconds if not name.startswith("ours")), key=seconds.__getitem__)
    return (
        f"{network}: {best} is {seconds[other] / seconds[best]:.2f}x as fast as {other}, "
        f"and {seconds['DDP'] / seconds[best]:.1f}x as fast as DDP"
    )


def main(
    output: Annotated[Path, typer.Option(help="Where the figures go.")] = Path("build/step_time.json"),
    only_hook: Annotated[bool, typer.Option("--only-hook", help="Only what the hook costs on loopback.")] = False,
) -> None:
    """Measure, print a table, and write the figures."""
    console = Console(width=200)
    cost = hook_cost()
    console.print(
        f"2 workers on loopback, 25M parameters, over plain DDP: dense and native {cost['hooked']:.3f} (limit 1.03), "
        f"adaptive {cost['adaptive']:.3f} ({cost['chosen']}), "
        f"PyTorch's own all-reduce hook {cost['torch_hook']:.3f}"
    )
    results: dict[str, Times] = {}
    for (latency_ms, mbps), name in {} if only_hook else NETWORKS.items():
        results[name] = measure(latency_ms, mbps)
        console.print(table_of({name: results[name]}))
    output.parent.mkdir(exist_ok=True)
    output.write_text(json.dumps({"hook_cost": cost, "results": results}, indent=1))
    if results:
        console.print(table_of(results))
    for name, times in results.items():
        console.print(verdict(name, times))


if __name__ == "__main__":
    typer.run(main)
