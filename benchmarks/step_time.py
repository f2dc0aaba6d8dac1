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

from headway.lab import Lab, LinkSpec, SaturationWarning, Scenario

FOLDER = Path(__file__).parent
NUM_HOSTS = 8
NETWORKS = {(ms, mbps): f"{ms} ms, {mbps} Mbps" for ms in (1, 50) for mbps in (40, 1000)}

Times = dict[str, dict[str, object]]


def measure(latency_ms: float, mbps: float, only: str = "", source: Path | None = None) -> Times:
    """Return the figures of every contender on one network.

    Args:
        latency_ms: One-way latency.
        mbps: Bandwidth of every NIC.
        only: Contenders whose names begin with this.
        source: The ``src`` folder of the headway to measure, if not this one.
    """
    found: Times = {}

    def note(_rank: int, line: str) -> None:
        if line.startswith("{"):
            said = json.loads(line)
            found[said["name"]] = said

    link = LinkSpec(latency_s=latency_ms / 1e3, bandwidth_bps=mbps * 1e6)
    with Lab(NUM_HOSTS, Scenario(link=link)) as lab, warnings.catch_warnings():
        warnings.simplefilter("ignore", SaturationWarning)
        known = [str(latency_ms / 1e3), str(mbps * 1e6)] if source is not None or only else []
        command = [sys.executable, str(FOLDER / "step_time_worker.py"), only, *known]
        env = {} if source is None else {"PYTHONPATH": str(source.resolve())}
        result = lab.run(command, env=env, output=note, timeout_s=1200)
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


def compare(console: Console, against: Path, num_turns: int) -> dict[str, dict[str, list[float]]]:
    """Measure our exchanges with the headway of another folder and with this one, by turns; return the ratios.

    The link is given to both, so that they choose the same algorithms, and nothing is measured at the start.
    """
    ratios: dict[str, dict[str, list[float]]] = {}
    for (latency_ms, mbps), name in NETWORKS.items():
        turns = [[measure(latency_ms, mbps, "ours", source) for source in (against, None)] for _ in range(num_turns)]
        table = Table("contender", "before, ms", "after, ms", "shortest over shortest", "each turn", title=name)
        ratios[name] = {}
        for contender in turns[0][0]:
            before, after = ([turn[which][contender]["seconds"] for turn in turns] for which in (0, 1))
            each = [b / a for a, b in zip(before, after, strict=True)]
            ratios[name][contender] = [min(after) / min(before), *each]
            shown = " ".join(f"{ratio:.2f}" for ratio in each)
            best = f"{min(after) / min(before):.3f}"
            table.add_row(contender, f"{min(before) * 1e3:.0f}", f"{min(after) * 1e3:.0f}", best, shown)
        console.print(table)
    return ratios


def main(
    output: Annotated[Path, typer.Option(help="Where the figures go.")] = Path("build/step_time.json"),
    only_hook: Annotated[bool, typer.Option("--only-hook", help="Only what the hook costs on loopback.")] = False,
    against: Annotated[
        Path | None, typer.Option(help="Compare our exchanges with those of another checkout: its src folder.")
    ] = None,
    turns: Annotated[int, typer.Option(help="With --against, how often each of the two is measured.")] = 3,
) -> None:
    """Measure, print a table, and write the figures."""
    console = Console(width=200)
    output.parent.mkdir(exist_ok=True)
    if against is not None:
        output.write_text(json.dumps(compare(console, against, turns), indent=1))
        return
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
    output.write_text(json.dumps({"hook_cost": cost, "results": results}, indent=1))
    if results:
        console.print(table_of(results))
    for name, times in results.items():
        console.print(verdict(name, times))


if __name__ == "__main__":
    typer.run(main)
