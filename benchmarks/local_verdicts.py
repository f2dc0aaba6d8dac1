"""Local steps held against their targets, from the runs of ``benchmarks/adaptive.py`` on networks made for them."""

from __future__ import annotations

import statistics

from adaptive_figures import ENOUGH, NUM_SETTLING, Run, smoothed, time_to, total_s

OURS, HOOK = "local auto", "adaptive balanced"
PEERS = ("DiLoCo", "post-local SGD", "SparseLoCo")
CLOSE_POINTS = 0.3


def local_verdicts(scenario: str, runs: list[Run]) -> list[str]:
    """Return lines that compare local steps with the targets of a scenario, as far as the runs are there."""
    firsts = {run["name"]: run for run in runs if run["seed"] == 0}
    ours, hook = firsts.get(OURS), firsts.get(HOOK)
    if ours is None:
        return []
    fixed = [run for name, run in firsts.items() if name.startswith("local ") and name != OURS]
    lines = []
    if hook is not None:
        lines += [_speed(ours, hook, limit=5.0 if scenario == "slow" else 1.0), *_accuracy(runs)]
    if scenario == "slow":
        lines += _time_to_accuracy(ours, [run for run in firsts.values() if run["name"].startswith(PEERS)], "peer", 1.5)
    if scenario == "rising":
        lines += _time_to_accuracy(ours, fixed, "fixed H by hindsight", 1.0)
    if scenario == "fast":
        lines.append(
            f"steps between exchanges: {chosen_steps(ours):g}, median after settling (target: 1 or close to it)"
        )
        if hook is not None:
            lines += _time_to_accuracy(ours, [hook], "hook", 1.0)
    return lines


def chosen_steps(run: Run) -> float:
    """Return the steps between exchanges that were in force in most steps."""
    return statistics.median(step.get("local_steps", 1) for step in run["steps"][NUM_SETTLING:])


def _speed(ours: Run, hook: Run, limit: float) -> str:
    own_s, hook_s = (total_s(run) / len(run["steps"]) for run in (ours, hook))
    return f"a step takes {1e3 * own_s:.0f} ms, {hook_s / own_s:.1f}x as fast as the hook's (limit {limit:g}x)"


def _accuracy(runs: list[Run]) -> list[str]:
    """Compare the final accuracy with the hook's, over all seeds that both have; numbers of samples are equal."""
    by_seed = {name: {run["seed"]: run["final"] for run in runs if run["name"] == name} for name in (OURS, HOOK)}
    seeds = sorted(by_seed[OURS].keys() & by_seed[HOOK].keys())
    gap = 100 * statistics.fmean(by_seed[OURS][seed] - by_seed[HOOK][seed] for seed in seeds)
    said = ", ".join(f"{by_seed[OURS][seed]:.2%} and {by_seed[HOOK][seed]:.2%}" for seed in seeds)
    return [
        f"final accuracy, ours and the hook's, over {len(seeds)} seeds: {said}; mean difference {gap:+.2f} points "
        f"(limit -{CLOSE_POINTS})"
    ]


def _time_to_accuracy(ours: Run, others: list[Run], kind: str, limit: float) -> list[str]:
    """Compare times to 84%, or to the highest accuracy that another one has reached, if that is less.

    The verdict is on those that reach 84%. If none does it is on all, so that a quick one that ends low still counts.
    """
    lines, ratios, enough = [], {}, set()
    for run in others:
        target = min(ENOUGH, max(smoothed(run)))
        own_s, other_s = time_to(ours, target), time_to(run, target)
        assert other_s is not None
        ratios[run["name"]] = 0.0 if own_s is None else other_s / own_s
        said = f"not reached ({max(smoothed(ours)):.1%} was)" if own_s is None else f"{own_s:.0f} s"
        lines.append(f"time to {target:.1%}: {run['name']} {other_s:.0f} s, ours {said}")
        if target == ENOUGH:
            enough.add(run["name"])
    if ratios:
        best = min(enough or ratios, key=ratios.__getitem__)
        lines.append(f"best {kind}: {best}, we are {ratios[best]:.2f}x as fast (limit {limit:g}x)")
    return lines
