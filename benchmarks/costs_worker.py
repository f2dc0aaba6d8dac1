"""What the hosts do in ``benchmarks/costs.py``: calibrate, predict the cost of every exchange, and then run it.

Rank 0 prints a line of JSON for the calibration, and one for each plan.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from dataclasses import asdict

import torch
import torch.distributed as dist

from headway.collectives import Executor
from headway.compress import BucketMemory, Shape
from headway.exchange import (
    EXCHANGES,
    CostModel,
    ExecutorChannel,
    Job,
    Plan,
    exchange_of,
    warm_up,
)
from headway.network import calibrate

NUMELS = (800, 32, 51_200, 64, 1_605_632, 512, 5_120, 10)
"""The tensors of the CNN of 1.66M parameters."""
RATIOS = (0.001, 0.01, 0.1)
NUM_WARM_UP, NUM_RUNS = 2, 3
LONG_S = 1.0
"""Exchanges that take longer run once."""


def plans() -> list[Plan]:
    """Return every exchange at every ratio that makes a difference to it."""
    made = []
    for exchange in EXCHANGES:
        plan = Plan(exchange=exchange, fusion="step")
        made += (
            [Plan(exchange=exchange, ratio=r, fusion="step") for r in RATIOS] if plan.description.uses_ratio else [plan]
        )
    return made


def measure(channel: ExecutorChannel, plan: Plan) -> float:
    """Return the median of the seconds from the last rank's start to the last rank's end; hosts share one clock.

    Rank 0 sends its indices every time, in VAR because its gradient is larger: a root that is new would have to make
    its buffers first, as happens in the first steps of a run.
    """
    memory, generator = BucketMemory(Shape(NUMELS)), torch.Generator().manual_seed(channel.rank)
    stamps = []
    num_runs = NUM_RUNS
    for step in range(NUM_WARM_UP + NUM_RUNS):
        gradient = torch.randn(sum(NUMELS), generator=generator) * (2 if channel.rank == 0 else 1)
        job = Job(step=step * channel.num_ranks, bucket=0, gradient=gradient, memory=memory)
        channel.executor.all_gather(torch.zeros(1), "one_shot")
        start = time.monotonic()
        exchange_of(plan).run(job, channel)
        stamps.append([start, time.monotonic()])
        if step == 0:
            took = channel.executor.all_gather(torch.tensor([stamps[0][1] - start]), "one_shot").max().item()
            num_runs = 1 if took > LONG_S else NUM_RUNS
        if step == NUM_WARM_UP + num_runs - 1:
            break
    rows = channel.executor.all_gather(torch.tensor(stamps[NUM_WARM_UP:], dtype=torch.float64), "one_shot")
    return statistics.median((rows[..., 1].amax(dim=0) - rows[..., 0].amax(dim=0)).tolist())


def main() -> None:
    """Predict, then measure."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    executor = Executor(timeout_s=120)
    calibration = calibrate(executor)
    speeds = warm_up(executor, [Plan(exchange=exchange) for exchange in EXCHANGES])
    model = CostModel(executor.num_ranks, calibration, speeds)
    channel = ExecutorChannel(executor, model)
    if executor.rank == 0:
        print(json.dumps({"link": asdict(calibration.link), "overhead": asdict(calibration.overhead)}), flush=True)
    for plan in plans():
        predicted = model.of(plan, Shape(NUMELS))
        seconds = measure(channel, plan)
        if executor.rank == 0:
            row = {"exchange": plan.exchange, "ratio": plan.sent_ratio, "seconds": seconds}
            print(json.dumps(row | {"predicted_s": predicted.seconds, "cost": asdict(predicted)}), flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
