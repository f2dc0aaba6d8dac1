"""A DDP script that knows nothing of Headway: any torchrun-style training."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(int(os.environ["RANK"]))
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
print("checksum", sum(parameter.double().sum().item() for parameter in model.parameters()), flush=True)
dist.barrier()
os._exit(0)  # torch 2.13 aborts now and then in its own threads when Python exits, under plain torchrun too
