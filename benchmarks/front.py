"""The exact Pareto front against an evolutionary search: hypervolume and time, on recorded problems.

The problems are networks and gain curves of runs on emulated hosts, and how fast a machine computes. Limit: 2 ms for
the front. NSGA-II is pymoo's, with the population and generations of the paper's authors (40 and 40).
"""

from __future__ import annotations

import json
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from headway.compress import Shape
from headway.exchange import ComputeSpeed, CostModel, Plan
from headway.network import Calibration, Link, Overhead
from headway.tuner import GainModel, Objectives, all_plans, pareto_front, ratios_between

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("recorded_problems.json").read_text())
PLANS = all_plans(ratios_between(0.001, 0.1), ("dense", "allgather_topk", "star_topk", "var_topk", "quantized"))
POPULATION, GENERATIONS = 40, 40
NUM_RUNS = 50


def costs_of(problem: dict[str, Any]) -> np.ndarray:
    """Return the three objectives of every plan."""
    link = Link(latency_s=problem["latency_s"], bandwidth_bps=problem["bandwidth_bps"])
    overhead = Overhead(message_s=RECORDED["message_s"], byte_s=RECORDED["byte_s"])
    speeds = {
        (each["exchange"], each["values"], each["bits"]): ComputeSpeed(
            call_s=each["call_s"], entry_s=each["entry_s"], sent_s=each["sent_s"]
        )
        for each in RECORDED["speeds"]
    }
    model = CostModel(problem["num_ranks"], Calibration(link=link, overhead=overhead), speeds)
    shapes = [Shape((numel,)) for numel in RECORDED["numels"]]
    compress_s, sync_s = Objectives(model, PLANS, shapes, RECORDED["arrivals_s"]).at(link)
    gains = GainModel(PLANS, problem["num_ranks"])
    gains.learn_curve(np.array(problem["gain_curve"]))
    return np.stack([compress_s, sync_s, 1 / gains.predict()], axis=1)


def grid_of(plans: list[Plan]) -> np.ndarray:
    """Return the number of the plan of each form (row) and ratio (column); some forms have all ratios alike."""
    ratios = sorted({plan.ratio for plan in plans if plan.description.uses_ratio})
    forms: dict[Plan, list[int]] = {}
    for number, plan in enumerate(plans):
        row = forms.setdefault(replace(plan, ratio=ratios[0]), [number] * len(ratios))
        if plan.description.uses_ratio:
            row[ratios.index(plan.ratio)] = number
    return np.array(list(forms.values()))


def evolve(costs: np.ndarray, seed: int) -> np.ndarray:
    """Return the objectives of what NSGA-II ends with; it varies the form of a plan, and its ratio."""
    from pymoo.algorithms.moo.nsga2 import NSGA2
    from pymoo.core.problem import Problem
    from pymoo.operators.crossover.sbx import SBX
    from pymoo.operators.mutation.pm import PM
    from pymoo.operators.repair.rounding import RoundingRepair
    from pymoo.operators.sampling.rnd import IntegerRandomSampling
    from pymoo.optimize import minimize

    grid = grid_of(PLANS)

    class Choice(Problem):
        def __init__(self) -> None:
            super().__init__(n_var=2, n_obj=3, xl=[0, 0], xu=[side - 1 for side in grid.shape], vtype=int)

        def _evaluate(self, x: np.ndarray, out: dict[str, np.ndarray], *args: object, **kwargs: object) -> None:
            out["F"] = costs[grid[tuple(x.astype(int).T)]]

    algorithm = NSGA2(
        pop_size=POPULATION,
        sampling=IntegerRandomSampling(),
        crossover=SBX(vtype=float, repair=RoundingRepair()),
        mutation=PM(vtype=float, repair=RoundingRepair()),
    )
    return minimize(Choice(), algorithm, ("n_gen", GENERATIONS), seed=seed).F


def hypervolumes(costs: np.ndarray, evolved: np.ndarray) -> tuple[float, float]:
    """Return those of the exact front and of what was evolved; all objectives from 0, the best, to 1, the worst."""
    from pymoo.indicators.hv import HV

    volume, low, span = HV(ref_point=np.full(costs.shape[1], 1.1)), costs.min(axis=0), np.ptp(costs, axis=0)
    return float(volume((costs[pareto_front(costs)] - low) / span)), float(volume((evolved - low) / span))


def seconds_of(call: Any, num_runs: int) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(num_runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def main() -> None:
    """Compare on every problem, and print a table."""
    warnings.simplefilter("ignore")
    table = Table("ranks, ms, Mbps", "plans", "on the front", "hypervolume", "NSGA-II", "ms", "NSGA-II")
    for problem in RECORDED["problems"]:
        costs = costs_of(problem)
        exact, found = hypervolumes(costs, evolve(costs, seed=1))
        exact_s = seconds_of(lambda costs=costs: pareto_front(costs), NUM_RUNS)
        evolved_s = seconds_of(lambda costs=costs: evolve(costs, seed=1), 3)
        name = f"{problem['num_ranks']}, {problem['latency_s'] * 1e3:.1f}, {problem['bandwidth_bps'] / 1e6:.0f}"
        front = len(pareto_front(costs))
        figures = (f"{exact:.4f}", f"{found:.4f}", f"{exact_s * 1e3:.2f}", f"{evolved_s * 1e3:.0f}")
        table.add_row(name, str(len(costs)), str(front), *figures)
    Console().print(table)


if __name__ == "__main__":
    main()
