"""Train for some steps, and print how many bytes the records say that this rank has sent."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import headway

exchange, algorithm, fusion = sys.argv[1:]
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
ddp = DistributedDataParallel(nn.Sequential(nn.Linear(500, 600), nn.ReLU(), nn.Linear(600, 300)), bucket_cap_mb=0.5)
link = headway.Link(latency_s=0.005, bandwidth_bps=5e8)
config = headway.Fixed(exchange=exchange, ratio=0.05, algorithm=algorithm, fusion=fusion, link=link)
handle = headway.attach(ddp, config)
for _ in range(12):
    ddp(torch.randn(4, 500)).square().mean().backward()
print(f"sent {handle.statistics().wire_bytes}", flush=True)
dist.barrier()
os._exit(0)  # torch may abort while it takes down its groups
