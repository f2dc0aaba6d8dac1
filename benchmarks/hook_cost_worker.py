"""One of two ranks on loopback: what does the hook cost where nothing has to be saved?

Models of 25M parameters take steps by turns: plain DDP, the hook, dense and native, the hook that chooses, and
PyTorch's own all-reduce hook.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import headway

NUM_SETTLING, NUM_STEPS = 12, 42
"""The tuner looks every third step, and thoroughly every tenth: the mean of whole cycles counts."""


def model() -> nn.Module:
    """Return 25.2M parameters in six layers."""
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(6)])


def main(store: str, rank: int) -> None:
    """Print the mean of each one's step over that of plain DDP."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    plain, hooked, adaptive, torch_hook = (DistributedDataParallel(model()) for _ in range(4))
    headway.attach(hooked, headway.Fixed(exchange="dense", algorithm="native", fusion="bucket"))
    handle = headway.attach(adaptive)
    torch_hook.register_comm_hook(None, default_hooks.allreduce_hook)
    batch = torch.randn(16, 2048)
    contenders = {"plain": plain, "hooked": hooked, "adaptive": adaptive, "torch_hook": torch_hook}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(NUM_SETTLING + NUM_STEPS):
        for name, ddp in contenders.items():
            dist.barrier()
            start = time.perf_counter()
            ddp(batch).square().mean().backward()
            dist.barrier()
            times[name].append(time.perf_counter() - start)
            ddp.zero_grad(set_to_none=False)
    means = {name: statistics.fmean(values[NUM_SETTLING:]) for name, values in times.items()}
    result = {name: mean / means["plain"] for name, mean in means.items()}
    print(json.dumps({**result, "chosen": handle.plan.label}), flush=True)
    os._exit(0)  # torch may abort while it takes down its groups


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
