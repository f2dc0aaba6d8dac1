"""The hook held against its targets, from the runs of ``benchmarks/adaptive.py``."""

from __future__ import annotations

import statistics

import numpy as np
from rich.console import Console

from adaptive_figures import NUM_SETTLING, Run, settled_s, smoothed, time_to


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
