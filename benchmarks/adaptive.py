"""Is the tuner worth it? The same training, on networks that change, with everything a user could have picked instead.

8 workers, a CNN of 1.66M parameters, Fashion-MNIST (the digits where it is not installed), scenarios c1 and c2 with
bandwidth x 0.04, and two more, "mixed" and "poor", phases by step. Targets: in each phase, after 10 steps, a step
within 15% of the fastest fixed exchange at the ratio in force; the accuracy that DDP ends with 8 times as fast as DDP
on c1 and c2, and twice as fast as the best fixed setting; final accuracy within 0.1 points of DDP, over three seeds.

Local steps have networks of their own, and peers that take local steps too. Targets: "slow", 5 Mbps and 50 ms: a step
5 times as fast as the hook's with a final accuracy at most 0.3 points below, and an accuracy reached 1.5 times as fast
as by the best peer. "rising", from 2 Mbps to 1 Gbps and back to 5 Mbps: as fast as the best fixed H by hindsight.
"fast", 1 Gbps and 1 ms: H = 1 or close to it, and nothing lost against the hook.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from adaptive_figures import ENOUGH, Run, settled_s, smoothed, time_to, total_s
from adaptive_scenarios import FOR_LOCAL_STEPS, NAMES, repeated, scenario_of, starts_of
from adaptive_verdicts import verdicts
from headway.lab import Lab, SaturationWarning, Scenario
from local_verdicts import local_verdicts
from peer_diloco import why_missing

WORKER = Path(__file__).with_name("adaptive_worker.py")
NUM_HOSTS = 8
TIMEOUT_S = 7200
RATIOS = (0.1, 0.01, 0.001)
EXCHANGES = ("allgather_topk", "union_topk", "star_topk", "var_topk", "layerwise_topk", "mstopk", "randomk")
WITH_SEEDS = ("adaptive balanced", "local auto")
POLICIES = ("balanced", "fast", "accurate", "goodput", "knee")


def contenders(scenario: str, seeds: int) -> list[Run]:
    """Return everybody; the ones that matter most come first."""
    first = for_local_steps() if scenario in FOR_LOCAL_STEPS else for_the_tuner()
    everybody = [{**run, "seed": 0} for run in first]
    for seed in range(1, seeds):
        if scenario not in FOR_LOCAL_STEPS:
            # the accuracy of DDP does not depend on the network: it may have the best one
            everybody.append({"name": "DDP", "kind": "ddp", "seed": seed, "phases": False})
        everybody += [{**run, "seed": seed} for run in first if run["name"] in WITH_SEEDS]
    return everybody


def local(steps: tuple[int, ...]) -> list[Run]:
    """Return local steps, as many as are chosen live and fixed numbers of them."""
    fixed = [{"name": f"local {each}", "kind": "local", "options": {"steps": each}} for each in steps]
    return [{"name": "local auto", "kind": "local"}, *fixed]


def peers(kinds: dict[str, str], steps: tuple[int, ...]) -> list[Run]:
    """Return peers that take local steps, each with these numbers of them."""
    return [
        {"name": f"{name} {each}", "kind": kind, "options": {"steps": each}}
        for name, kind in kinds.items()
        for each in steps
    ]


def for_local_steps() -> list[Run]:
    """Return those that local steps are compared with."""
    return [
        *local(()),
        {"name": "adaptive balanced", "kind": "adaptive", "options": {"policy": "balanced"}},
        *local((1, 4, 8, 16, 32))[1:],
        *peers({"SparseLoCo": "sparseloco"}, (15, 30)),
        *peers({"DiLoCo": "diloco", "post-local SGD": "post_local"}, (32, 8)),
    ]


def for_the_tuner() -> list[Run]:
    """Return those that the tuner is compared with."""
    first: list[Run] = [
        {"name": f"adaptive {name}", "kind": "adaptive", "options": {"policy": name}} for name in POLICIES
    ]
    first += [
        {"name": f"plain momentum, {name}", "kind": "adaptive", "options": {"policy": name}, "is_corrected": False}
        for name in POLICIES[:2]
    ]
    first += [*local((4, 8, 32)), *peers({"SparseLoCo": "sparseloco"}, (15, 30)), {"name": "DDP", "kind": "ddp"}]
    first += [
        {"name": f"{exchange} {ratio}", "kind": "fixed", "options": {"exchange": exchange, "ratio": ratio}}
        for exchange in EXCHANGES
        for ratio in RATIOS
    ]
    return [
        *first,
        {"name": "dense", "kind": "fixed", "options": {"exchange": "dense"}},
        {"name": "quantized", "kind": "fixed", "options": {"exchange": "quantized"}},
        {"name": "fp16 hook", "kind": "fp16"},
        {"name": "PowerSGD rank 4", "kind": "powersgd", "options": {"matrix_approximation_rank": 4}},
    ]


def measure(scenario: Scenario, num_steps: int, runs: list[Run], data: str, note: Any) -> None:
    """Run contenders one after the other on emulated hosts; tell of each as it ends."""

    def take(_rank: int, line: str) -> None:
        if line.startswith("{"):
            note(json.loads(line))

    command = [sys.executable, str(WORKER), json.dumps(runs), str(num_steps), data]
    with Lab(NUM_HOSTS, repeated(scenario, num_steps, len(runs))) as lab, warnings.catch_warnings():
        warnings.simplefilter("ignore", SaturationWarning)
        result = lab.run(command, output=take, timeout_s=TIMEOUT_S)
    if result.exit_code != 0:
        raise RuntimeError(f"rank {result.first_failed} failed: {result.tails[result.first_failed or 0]}")


def table_of(runs: list[Run], starts: list[int], target: float) -> Table:
    """Show everybody."""
    table = Table(
        "contender",
        "total s",
        f"s to {target:.1%}",
        f"s to {ENOUGH:.0%}",
        "final",
        *(f"ms, phase {i + 1}" for i in range(len(starts))),
    )
    for run in runs:
        reached, enough = time_to(run, target), time_to(run, ENOUGH)
        phases = [f"{seconds * 1e3:.0f}" for seconds in settled_s(run, starts)]
        table.add_row(
            run["name"],
            f"{total_s(run):.0f}",
            "-" if reached is None else f"{reached:.0f}",
            "-" if enough is None else f"{enough:.0f}",
            f"{run['final']:.1%}",
            *phases,
        )
    return table


def main(
    output: Annotated[
        Path, typer.Option(help="Where the figures go; those that are there are not measured again.")
    ] = Path("build/adaptive.json"),
    scenario: Annotated[list[str] | None, typer.Option(help=f"{', '.join(NAMES)}; all by default.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only contenders whose name begins so.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds for our defaults and DDP.")] = 3,
    data: Annotated[str, typer.Option(help="A folder of idx files.")] = "",
    pictures: Annotated[Path, typer.Option(help="Where the timelines go.")] = Path("build"),
    show: Annotated[bool, typer.Option("--show", help="Measure nothing, show what is there.")] = False,
) -> None:
    """Measure whoever is missing, print tables and verdicts, draw the timelines."""
    console = Console(width=200)
    output.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[Run]] = json.loads(output.read_text()) if output.exists() else {}
    missing = why_missing()
    for name in scenario or NAMES:
        played, num_steps = scenario_of(name)
        runs = found.setdefault(name, [])
        there = {(run["name"], run["seed"]) for run in runs}
        wanted = [
            run
            for run in contenders(name, seeds)
            if (run["name"], run["seed"]) not in there
            and (not only or any(run["name"].startswith(prefix) for prefix in only))
        ]
        if missing is not None and any(run["kind"] == "diloco" for run in wanted):
            console.print(f"DiLoCo is left out: {missing}", markup=False)
            wanted = [run for run in wanted if run["kind"] != "diloco"]

        def note(run: Run, runs: list[Run] = runs, name: str = name) -> None:
            runs.append(run)
            output.write_text(json.dumps(found))
            console.print(f"{name} {run['name']} seed {run['seed']}: {total_s(run):.0f} s, {run['final']:.1%}")

        if wanted and not show:
            measure(played, num_steps, wanted, data, note)
        starts = starts_of(played)
        firsts = [run for run in runs if run["seed"] == 0]
        ddp = next((run for run in firsts if run["name"] == "DDP"), None)
        console.print(table_of(firsts, starts, 1.0 if ddp is None else smoothed(ddp)[-1]))
        if ddp is not None and any(run["name"] == "adaptive balanced" for run in firsts):
            verdicts(runs, starts, console)
        for line in local_verdicts(name, runs) if name in FOR_LOCAL_STEPS else ():
            console.print(line)
        for run in firsts:
            if run["name"] == "adaptive balanced":
                from adaptive_timeline import draw

                draw(run, played, pictures / f"adaptive_{name}.png")


if __name__ == "__main__":
    typer.run(main)
