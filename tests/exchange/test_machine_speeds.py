"""All ranks know the same of how fast they compute, and time only what some do not know yet."""

from __future__ import annotations

import os

import torch.distributed as dist

from headway.collectives import Executor
from headway.exchange import ComputeSpeed, Plan, machine_speeds, measure_speeds
from headway.exchange.speed_cache import SpeedCache

PLANS = [*(Plan(exchange="star_topk", ratio=ratio) for ratio in (0.1, 0.2)), Plan(values="fp16")]
FORMS = {("star_topk", "fp32", 0), ("dense", "fp16", 0)}


def measure_three_times(folder: str) -> tuple[list[dict], list[list[str]]]:
    """Each rank has a cache of its own, as on a machine of its own; rank 1 loses a part of its own in between."""
    before, os.environ["XDG_CACHE_HOME"] = os.environ["XDG_CACHE_HOME"], f"{folder}/{dist.get_rank()}"
    found, timed, measure = [], [], machine_speeds.measure_speed

    def measure_speed(plan: Plan, num_ranks: int) -> ComputeSpeed:
        timed[-1].append(plan.exchange)
        return measure(plan, num_ranks)

    machine_speeds.measure_speed = measure_speed
    try:
        with Executor(timeout_s=20) as executor:
            for number in range(3):
                timed.append([])
                if number == 2 and dist.get_rank() == 1:
                    kept = SpeedCache(2).read()
                    SpeedCache(2).path.unlink()
                    SpeedCache(2).write({form: speed for form, speed in kept.items() if form[0] == "dense"})
                found.append(measure_speeds(executor, PLANS))
    finally:
        machine_speeds.measure_speed, os.environ["XDG_CACHE_HOME"] = measure, before
    return found, timed


def test_ranks_agree_and_time_what_any_of_them_does_not_know(pool, tmp_path):
    (first, timed), (second, timed_by_second) = pool.run(measure_three_times, str(tmp_path), num_ranks=2)
    assert first == second
    assert timed == timed_by_second == [["star_topk", "dense"], [], ["star_topk"]]
    assert first[0] == first[1]
    assert all(set(found) == FORMS for found in first)
    assert all(speed.seconds(1 << 20, 1 << 14) > 0 for speed in first[0].values())
