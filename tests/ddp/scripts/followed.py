"""Train over a network that changes; stay in each phase until it is known, and print what is known then.

followed.py STEPS_PER_PHASE MOST_STEPS PHASES: the steps of a phase in the scenario, how many to take at most until the
phase is known, and a JSON list of what there is to know: least and most latency (s), least and most bandwidth (bit/s).
Rank 0 prints a line for each phase: the number of steps, latency, bandwidth, and the changes detected so far.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import headway
from headway.lab import Control


def main(steps_per_phase: int, most_steps: int, phases: list[list[float]]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(500, 1000), nn.ReLU(), nn.Linear(1000, 500)))
    config = headway.Fixed(exchange="allgather_topk", ratio=0.12, fusion="step", interval=4, timeout_s=30)
    handle = headway.attach(model, config)
    control = Control()
    inputs = torch.randn(8, 500)
    for phase, (least_s, most_s, least_bps, most_bps) in enumerate(phases):
        num_steps, is_known = 0, False
        while not is_known and num_steps < most_steps:
            num_steps += 1
            control.step(phase * steps_per_phase)
            model(inputs).square().mean().backward()
            link = handle.network.estimate.link  # the same on all ranks after every step: they leave the loop together
            is_known = least_s < link.latency_s < most_s and least_bps < link.bandwidth_bps < most_bps
        if dist.get_rank() == 0:
            changes = [change.what for change in handle.network.changes]
            print("view", json.dumps([num_steps, link.latency_s, link.bandwidth_bps, changes]), flush=True)
    dist.barrier()
    handle.close()
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
