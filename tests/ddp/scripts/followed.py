"""Train over a network that changes; rank 0 prints what is known of it after some steps, a line of JSON each.

followed.py CHECK_AFTER: a JSON list of numbers of steps.
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


def main(check_after: list[int]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(500, 1000), nn.ReLU(), nn.Linear(1000, 500)))
    config = headway.Fixed(exchange="allgather_topk", ratio=0.12, fusion="step", interval=4, timeout_s=30)
    handle = headway.attach(model, config)
    control = Control()
    inputs = torch.randn(8, 500)
    for step in range(1, max(check_after) + 1):
        control.step(step - 1)
        model(inputs).square().mean().backward()
        if step in check_after and dist.get_rank() == 0:
            view = handle.network
            link = view.estimate.link
            changes = [change.what for change in view.changes]
            print("view", json.dumps([link.latency_s, link.bandwidth_bps, changes]), flush=True)
    dist.barrier()
    handle.close()
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
