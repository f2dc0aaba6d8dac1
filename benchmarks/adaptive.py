"""Is the tuner worth it? The same training, on networks that change, with everything a user could have picked instead.

8 workers, a CNN of 1.66M parameters, Fashion-MNIST (the digits where it is not installed), scenarios c1 and c2 with
bandwidth x 0.04, and two more, "mixed" and "poor", phases by step. Targets: in each phase, after 10 steps, a step
within 15% of the fastest fixed exchange at the ratio in force; the accuracy that DDP ends with 8 times as fast as DDP
on c1 and c2, and twice as fast as the best fixed setting; final accuracy within 0.1 points of DDP, over three seeds.
"""

from __future__ import annotations

import json
import statistics
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from headway.lab import Lab, LinkSpec, Phase, SaturationWarning, Scenario, When, load_scenario

WORKER = Path(__file__).with_name("adaptive_worker.py")
NUM_HOSTS, BANDWIDTH_SCALE = 8, 0.04
PHASE_STEPS = {"c1": 40, "c2": 4}
"""Steps of a phase of c1, and of an epoch of c2."""
MORE_PHASES = {
    "mixed": ((2, 500), (20, 100), (80, 20), (40, 200), (5, 50)),
    "poor": ((20, 30), (100, 5), (50, 10), (80, 20), (30, 5)),
}
"""Latency in ms and bandwidth in Mbps of phases of 40 steps."""
ENOUGH = 0.84
"""The accuracy whose time is told beside that of DDP's own."""
NUM_SETTLING = 10
TIMEOUT_S = 7200
EVERY = 8
RATIOS = (0.1, 0.01, 0.001)
EXCHANGES = ("allgather_topk", "union_topk", "star_topk", "var_topk", "layerwise_topk", "mstopk", "randomk")
WITH_SEEDS = ("adaptive balanced", "local auto")
POLICIES = ("balanced", "fast", "accurate", "goodput", "knee")

Run = dict[str, Any]


def contenders(seeds: int) -> list[Run]:
    """Return everybody; the ones that matter most come first."""
    first: list[Run] = [
        {"name": f"adaptive {name}", "kind": "adaptive", "options": {"policy": name}} for name in POLICIES
    ]
    first += [
        {"name": f"plain momentum, {name}", "kind": "adaptive", "options": {"policy": name}, "is_corrected": False}
        for name in POLICIES[:2]
    ]
    first += [
        {"name": "local auto", "kind": "local"},
        *({"name": f"local {steps}", "kind": "local", "options": {"steps": steps}} for steps in (4, 8, 32)),
        *({"name": f"SparseLoCo {steps}", "kind": "sparseloco", "options": {"steps": steps}} for steps in (15, 30)),
        {"name": "DDP", "kind": "ddp"},
    ]
    fixed = [(exchange, ratio) for exchange in EXCHANGES for ratio in RATIOS]
    first += [
        {"name": f"{exchange} {ratio}", "kind": "fixed", "options": {"exchange": exchange, "ratio": ratio}}
        for exchange, ratio in fixed
    ]
    first += [
        {"name": "dense", "kind": "fixed", "options": {"exchange": "dense"}},
        {"name": "quantized", "kind": "fixed", "options": {"exchange": "quantized"}},
        {"name": "fp16 hook", "kind": "fp16"},
        {"name": "PowerSGD rank 4", "kind": "powersgd", "options": {"matrix_approximation_rank": 4}},
    ]
    everybody = [{**run, "seed": 0} for run in first]
    for seed in range(1, seeds):  # the accuracy of DDP does not depend on the network: it may have the best one
        everybody.append({"name": "DDP", "kind": "ddp", "seed": seed, "phases": False})
        everybody += [{**run, "seed": seed} for run in first if run["name"] in WITH_SEEDS]
    return everybody


def scenario_of(name: str) -> tuple[Scenario, int]:
    """Return a scenario with its phases by steps, and its number of steps."""
    if name in MORE_PHASES:
        phases = tuple(
            Phase(start=When(at_step=40 * number), link=LinkSpec(latency_s=ms / 1e3, bandwidth_bps=mbps * 1e6))
            for number, (ms, mbps) in enumerate(MORE_PHASES[name])
        )
        return Scenario(name=name, link=phases[0].link, phases=phases), 40 * len(phases)
    full = load_scenario(name)
    unit = max(starts_of(full)) // (3 if name == "c1" else 44)
    played = full.scaled(bandwidth=BANDWIDTH_SCALE, time=PHASE_STEPS[name] / unit)
    return played, PHASE_STEPS[name] * (4 if name == "c1" else 48)


def repeated(scenario: Scenario, num_steps: int, times: int) -> Scenario:
    """Return a scenario whose phases start anew with every contender."""
    phases = [
        Phase(start=When(at_step=number * num_steps + (phase.start.at_step or 0)), link=phase.link)
        for number in range(times)
        for phase in scenario.phases
    ]
    return Scenario(name=scenario.name, link=scenario.link, phases=tuple(phases))


def starts_of(scenario: Scenario) -> list[int]:
    """Return the first step of each phase."""
    return [phase.start.at_step or 0 for phase in scenario.phases]


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


def total_s(run: Run) -> float:
    """Return the seconds of all steps."""
    return sum(step["seconds"] for step in run["steps"])


def smoothed(run: Run) -> list[float]:
    """Return accuracies, each the mean of three."""
    seen = run["accuracies"]
    return [statistics.fmean(seen[max(0, i - 2) : i + 1]) for i in range(len(seen))]


def time_to(run: Run, target: float) -> float | None:
    """Return the seconds until an accuracy was reached; None if it never was."""
    for number, accuracy in enumerate(smoothed(run), 1):
        if accuracy >= target:
            return sum(step["seconds"] for step in run["steps"][: number * EVERY])
    return None


def settled_s(run: Run, starts: list[int]) -> list[float]:
    """Return the median step of each phase, without its first ten."""
    ends = [*starts[1:], len(run["steps"])]
    return [
        statistics.median(step["seconds"] for step in run["steps"][start + NUM_SETTLING : end])
        for start, end in zip(starts, ends, strict=True)
    ]


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


def fastest_fixed_s(runs: list[Run], starts: list[int], phase: int, ratio: float) -> float:
    """Return the step of the fastest fixed exchange at a ratio: between those measured, on a line."""
    times: dict[str, dict[float, float]] = {}
    for run in runs:
        if run["kind"] == "fixed":
            options = run["options"]
            times.setdefault(options["exchange"], {})[options.get("ratio", 1.0)] = settled_s(run, starts)[phase]
    found = []
    for known in times.values():
        if len(known) > 1 or ratio in known:
            ratios = sorted(known)
            found.append(float(np.interp(ratio, ratios, [known[each] for each in ratios])))
    return min(found)


def in_force(run: Run, start: int, end: int) -> float:
    """Return the ratio of most of a phase."""
    return statistics.median(step.get("ratio", 1.0) for step in run["steps"][start + NUM_SETTLING : end])


def verdicts(runs: list[Run], starts: list[int], console: Console) -> None:
    """Hold the default policy against the targets."""
    firsts = [run for run in runs if run["seed"] == 0]
    by_name = {run["name"]: run for run in firsts}
    ours, ddp = by_name["adaptive balanced"], by_name["DDP"]
    target = smoothed(ddp)[-1]
    reached, by_ddp = time_to(ours, target), time_to(ddp, target)
    if reached is not None and by_ddp is not None:
        console.print(f"time to {target:.1%}: {reached:.0f} s, {by_ddp / reached:.1f}x as fast as DDP (limit 8x)")
    else:
        console.print(f"{target:.1%} was not reached; {max(smoothed(ours)):.1%} was")
    fixed = {run["name"]: time_to(run, target) for run in firsts if run["kind"] == "fixed"}
    known = {name: seconds for name, seconds in fixed.items() if seconds is not None}
    if known and reached is not None:
        best = min(known, key=known.__getitem__)
        console.print(f"best fixed by hindsight: {best}, {known[best]:.0f} s: {known[best] / reached:.2f}x (limit 2)")
    has_fixed = any(run["kind"] == "fixed" for run in firsts)
    phases = zip(starts, [*starts[1:], len(ours["steps"])], strict=True)
    for phase, (start, end) in enumerate(phases if has_fixed else ()):
        ratio = in_force(ours, start, end)
        over = settled_s(ours, starts)[phase] / fastest_fixed_s(firsts, starts, phase, ratio)
        console.print(f"phase {phase + 1}: ratio {ratio:.4f}, {over:.2f} of the fastest fixed (limit 1.15)")
    pairs = [
        (run["final"], other["final"])
        for run in runs
        for other in runs
        if run["name"] == "adaptive balanced" and other["name"] == "DDP" and run["seed"] == other["seed"]
    ]
    if pairs:
        gap = 100 * statistics.fmean(ours - ddp for ours, ddp in pairs)
        said = ", ".join(f"{ours:.2%} and {ddp:.2%}" for ours, ddp in pairs)
        console.print(
            f"final accuracy, ours and DDP, over {len(pairs)} seeds: {said}; mean difference {gap:+.2f} points"
        )


def main(
    output: Annotated[
        Path, typer.Option(help="Where the figures go; those that are there are not measured again.")
    ] = Path("build/adaptive.json"),
    scenario: Annotated[list[str] | None, typer.Option(help="c1, c2, mixed or poor; all by default.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only contenders whose name begins so.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds for the default policy and DDP.")] = 3,
    data: Annotated[str, typer.Option(help="A folder of idx files.")] = "",
    pictures: Annotated[Path, typer.Option(help="Where the timelines go.")] = Path("build"),
    show: Annotated[bool, typer.Option("--show", help="Measure nothing, show what is there.")] = False,
) -> None:
    """Measure whoever is missing, print tables and verdicts, draw the timelines."""
    console = Console(width=200)
    output.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[Run]] = json.loads(output.read_text()) if output.exists() else {}
    for name in scenario or ["c1", "c2", *MORE_PHASES]:
        played, num_steps = scenario_of(name)
        runs = found.setdefault(name, [])
        there = {(run["name"], run["seed"]) for run in runs}
        wanted = [
            run
            for run in contenders(seeds)
            if (run["name"], run["seed"]) not in there
            and (not only or any(run["name"].startswith(prefix) for prefix in only))
        ]

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
        for run in firsts:
            if run["name"] == "adaptive balanced":
                from adaptive_timeline import draw

                draw(run, played, pictures / f"adaptive_{name}.png")


if __name__ == "__main__":
    typer.run(main)
