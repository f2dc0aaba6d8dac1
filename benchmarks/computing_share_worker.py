"""What the hosts do in ``benchmarks/computing_share.py``: steps with every contender, on one network after another.

Rank 0 prints a line of JSON for each: seconds of a step, with and without exchanges, and H at the end.
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
NUM_ALONE = 10


def seconds_of_a_step(contender: Contender, samples: Samples, generator: torch.Generator, num_steps: int) -> float:
    """Take steps; return the time of one, from the first rank's start to the last rank's end."""
    dist.barrier()
    start = time.monotonic()
    for _ in range(num_steps):
        contender.step(samples, generator)
    ends = torch.tensor([start, -time.monotonic()], dtype=torch.float64)
    dist.all_reduce(ends, dist.ReduceOp.MIN)
    return (-ends[1] - ends[0]).item() / num_steps


def measure(described: dict[str, Any], networks: range, control: Control, samples: Samples) -> None:
    """Take steps with a contender on one network after the other, and without an exchange before each; tell of them."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    control.step(networks[0])
    time.sleep(SETTLING_S)
    alone, contender = Contender({"kind": "alone", "seed": 0}), Contender({**described, "seed": 0})
    for number, network in enumerate(networks):
        dist.barrier()
        control.step(network)
        time.sleep(SETTLING_S)
        alone_s = seconds_of_a_step(alone, samples, generator, NUM_ALONE)
        for _ in range(described["num_settling"]):
            contender.step(samples, generator)
        seconds = seconds_of_a_step(contender, samples, generator, described["num_steps"])
        local_steps = 1 if contender.handle is None else contender.handle.plan.local_steps
        found = {"seconds": seconds, "alone_s": alone_s, "local_steps": local_steps}
        if dist.get_rank() == 0:
            print(json.dumps({"name": described["name"], "network": number, **found}), flush=True)
    contender.close()


def main() -> None:
    """Take every contender in turn, each through all networks."""
    contenders, num_networks, folder = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3] or None
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    samples, control = load_images(folder).train, Control()
    for number, described in enumerate(contenders):
        measure(described, range(number * num_networks, (number + 1) * num_networks), control, samples)
    dist.barrier()
    os._exit(0)  # torch may abort while it takes down its groups


if __name__ == "__main__":
    main()
