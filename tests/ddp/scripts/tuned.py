"""Trains on emulated hosts with a plan that is chosen live; rank 0 prints the decisions and what each step sent.

tuned.py STEPS_PER_PHASE MOST_STEPS BPS: stays in the second phase until less is sent than at the end of the first, and
the bandwidth is known to be less than some bits a second.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import headway
from headway.lab import Control

phase_steps, most_steps, most_bps = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(2000, 1000), nn.ReLU(), nn.Linear(1000, 10)))
config = headway.Adaptive(exchanges=("allgather_topk",), warm_up=4, timeout_s=60)
handle = headway.attach(model, config)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
control = Control()
generator = torch.Generator().manual_seed(dist.get_rank())
sent: dict[int, int] = {}
for step in range(most_steps):
    control.step(min(step, phase_steps))
    inputs = torch.randn(8, 2000, generator=generator)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(dim=1)).backward()
    optimizer.step()
    for record in handle.records:
        sent[record.step] = sum(each.wire_bytes for each in handle.records if each.step == record.step)
    bandwidth_bps = handle.network.estimate.link.bandwidth_bps
    is_over = torch.tensor(
        [step > phase_steps and bandwidth_bps < most_bps and sent[step] < 0.7 * sent[phase_steps - 1]]
    )
    dist.broadcast(is_over, 0)
    if is_over:
        break
parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
digest = torch.tensor(list(hashlib.sha256(parameters.numpy().tobytes()).digest()))
everyone = [torch.empty_like(digest) for _ in range(dist.get_world_size())]
dist.all_gather(everyone, digest)
if dist.get_rank() == 0:
    equal = all(torch.equal(digest, other) for other in everyone)
    decisions = [{"step": each.step, "cause": each.cause, "words": each.words} for each in handle.history]
    saw = {"equal": equal, "decisions": decisions, "sent": list(sent.items()), "bandwidth_bps": bandwidth_bps}
    print(json.dumps(saw), flush=True)
dist.barrier()
os._exit(0)
