"""Two ranks gossip, and end in one of the ways that scripts do: python ending.py STORE RANK HOW."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn

from headway import gossip

store, rank, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
model = nn.Linear(4, 4)
optimizer = gossip.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
optimizer.average_()
if how == "close":
    optimizer.close()
if how in ("close", "destroy"):
    dist.destroy_process_group()
print("done", flush=True)
