"""What the hosts do in ``benchmarks/control.py``: train two models in turns, one adaptive, one with its plan fixed.

Rank 0 prints a line of JSON: seconds a step of each block, for both.
"""

from __future__ import annotations

import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import headway
from headway.train import cnn
from headway.tuner import Balanced, Front

NUM_SETTLING, NUM_BLOCKS, BLOCK = 36, 12, 12
BATCH = 16


class Settled:
    """The default policy, until it is told to stay with the plan in force: only then can the two be compared."""

    def __init__(self) -> None:
        self.stays = False

    def __call__(self, front: Front) -> np.ndarray:
        """Return the score of each plan."""
        if not self.stays:
            return Balanced()(front)
        return np.where(np.arange(len(front)) == front.in_force, 2.0, 1.0)


def steps(ddp: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
    """Train for some steps; return the seconds of one, from the first rank's start to the last rank's end."""
    images, labels = torch.randn(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))
    dist.barrier()
    start = time.monotonic()
    for _ in range(number):
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(images), labels).backward()
        optimizer.step()
    times = torch.tensor([start, -time.monotonic()], dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MIN)
    return (-times[1] - times[0]).item() / number


def main() -> None:
    """Let the tuner find its plan, then compare."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    tuned, fixed = (DistributedDataParallel(cnn()) for _ in range(2))
    policy = Settled()
    handle = headway.attach(tuned, headway.Adaptive(policy=policy, timeout_s=120))
    optimizers = {model: torch.optim.SGD(model.parameters(), lr=0.001) for model in (tuned, fixed)}
    steps(tuned, optimizers[tuned], NUM_SETTLING)
    policy.stays = True
    steps(tuned, optimizers[tuned], BLOCK)
    plan = handle.plan
    fields = {name: getattr(plan, name) for name in ("exchange", "ratio", "algorithm", "values", "fusion", "bits")}
    other = headway.attach(fixed, headway.Fixed(**fields, interval=0, timeout_s=120))
    steps(fixed, optimizers[fixed], BLOCK)
    blocks = []
    for _ in range(NUM_BLOCKS):
        blocks.append([steps(model, optimizers[model], BLOCK) for model in (tuned, fixed)])
    if dist.get_rank() == 0:
        words = [decision.words for decision in handle.history if decision.is_switch]
        print(json.dumps({"blocks": blocks, "plan": fields, "words": words}), flush=True)
    handle.close()
    other.close()
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
