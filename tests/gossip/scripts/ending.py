"""Two ranks gossip, and end in one of the ways that scripts do; prints when, as a line of JSON, and ends.

ending.py STORE RANK HOW: no script here cleans up after itself, except where HOW says so.
"""

from __future__ import annotations

import gc
import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

from headway import gossip


def wrap_and_train(num_steps: int = 3) -> gossip.GossipOptimizer:
    model = nn.Linear(4, 4)
    optimizer = gossip.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), timeout_s=10)
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return optimizer


def main(store: str, rank: int, how: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    optimizer = wrap_and_train()
    optimizer.average_()
    if how.endswith("second optimizer"):
        if how.startswith("close"):
            optimizer.close()
        del optimizer
        gc.collect()
        optimizer = wrap_and_train()
    if how == "close":
        optimizer.close()
    if "destroy" in how:
        dist.destroy_process_group()
    if how == "destroy, close":
        optimizer.close()
    if how == "one exits" and rank == 0:
        go_on_alone(optimizer)
    print(json.dumps({"at": time.monotonic()}), flush=True)
    if how == "raise":
        raise ZeroDivisionError("made to fail")
    if how == "exit" or (how == "one exits" and rank == 1):
        sys.exit(3)


def go_on_alone(optimizer: gossip.GossipOptimizer) -> None:
    """Take steps until the other rank is given up."""
    while not optimizer.events:
        optimizer.zero_grad()
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
