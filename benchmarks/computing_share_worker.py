"""What the hosts do in ``benchmarks/computing_share.py``: steps with every contender, on one network after another.

Rank 0 prints a line of JSON for each: seconds of a step, and how many local steps were in force at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from contenders import Contender
from headway.lab import Control
from headway.train import Samples, load_images

SETTLING_S = 0.5
"""For the lab to go to another network."""


def measure(described: dict[str, Any], samples: Samples) -> dict[str, Any]:
    """Take steps with a contender; return the time of one, from the first rank's start to the last rank's end."""
    contender = Contender({**described, "seed": 0})
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(described["num_settling"]):
        contender.step(samples, generator)
    dist.barrier()
    start, num_steps = time.monotonic(), described["num_steps"]
    for _ in range(num_steps):
        contender.step(samples, generator)
    ends = torch.tensor([start, -time.monotonic()], dtype=torch.float64)
    dist.all_reduce(ends, dist.ReduceOp.MIN)
    local_steps = 1 if contender.handle is None else contender.handle.plan.local_steps
    contender.close()
    return {"name": described["name"], "seconds": (-ends[1] - ends[0]).item() / num_steps, "local_steps": local_steps}


def main() -> None:
    """Take every contender in turn, on every network."""
    contenders, num_networks, folder = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3] or None
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    samples, control = load_images(folder).train, Control()
    for network in range(num_networks):
        control.step(network)
        time.sleep(SETTLING_S)
        dist.barrier()
        for described in contenders:
            found = measure(described, samples)
            if dist.get_rank() == 0:
                print(json.dumps({**found, "network": network}), flush=True)
    dist.barrier()
    os._exit(0)  # torch may abort while it takes down its groups


if __name__ == "__main__":
    main()
