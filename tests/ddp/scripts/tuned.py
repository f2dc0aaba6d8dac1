"""Trains on emulated hosts with a plan that is chosen live; rank 0 prints the plan of each step, and the decisions."""

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

num_steps = int(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(2000, 1000), nn.ReLU(), nn.Linear(1000, 10)))
config = headway.Adaptive(exchanges=("allgather_topk",), warm_up=5, timeout_s=60)
handle = headway.attach(model, config)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
control = Control()
generator = torch.Generator().manual_seed(dist.get_rank())
for step in range(num_steps):
    control.step(step)
    inputs = torch.randn(8, 2000, generator=generator)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(dim=1)).backward()
    optimizer.step()
total = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
everyone = [torch.empty_like(total) for _ in range(dist.get_world_size())]
dist.all_gather(everyone, total)
if dist.get_rank() == 0:
    equal = all(torch.equal(total, other) for other in everyone)
    decisions = [{"step": each.step, "cause": each.cause, "words": each.words} for each in handle.history]
    records = [[record.step, record.exchange, record.ratio, record.wire_bytes] for record in handle.records]
    print(json.dumps({"equal": equal, "decisions": decisions, "records": records}), flush=True)
dist.barrier()
os._exit(0)
