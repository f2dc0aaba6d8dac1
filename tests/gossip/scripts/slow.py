"""Gossip over a link on which a message takes longer than the deadline; print the longest step, events and bytes.

slow.py TIMEOUT_S FILE: the second step is taken when the file says that the link has become slow.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from headway import gossip
from headway.lab import Control

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = nn.Linear(280, 280)
inner = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = gossip.wrap(model, inner, algorithm="dpsgd", timeout_s=float(sys.argv[1]))
longest_s = 0.0
control, is_slow = Control(), Path(sys.argv[2])
for step in range(2):
    control.step(step)
    while step == 1 and not is_slow.exists():
        time.sleep(0.01)
    start = time.monotonic()
    optimizer.zero_grad()
    model(torch.randn(4, 280)).square().mean().backward()
    optimizer.step()
    longest_s = max(longest_s, time.monotonic() - start)
num_bytes = optimizer.statistics().wire_bytes
print(f"longest {longest_s} events {len(optimizer.events)} bytes {num_bytes}", flush=True)
optimizer.close()
dist.barrier()
os._exit(0)  # torch may abort while it takes down its groups
