"""One of two ranks on loopback: what does the hook cost where nothing has to be saved?

Two models of 25M parameters, one with plain DDP and one with the hook, dense and native, take steps by turns.
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
from torch.nn.parallel import DistributedDataParallel

import headway

NUM_STEPS = 30


def model() -> nn.Module:
    """Return 25.2M parameters in six layers."""
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(6)])


def main(store: str, rank: int) -> None:
    """Print the median step of each, and of their ratios."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    plain, hooked = DistributedDataParallel(model()), DistributedDataParallel(model())
    headway.attach(hooked, headway.Fixed(exchange="dense", algorithm="native", fusion="bucket"))
    batch = torch.randn(16, 2048)
    times: dict[str, list[float]] = {"plain": [], "hooked": []}
    for _ in range(NUM_STEPS):
        for name, ddp in (("plain", plain), ("hooked", hooked)):
            dist.barrier()
            start = time.perf_counter()
            ddp(batch).square().mean().backward()
            dist.barrier()
            times[name].append(time.perf_counter() - start)
            ddp.zero_grad(set_to_none=False)
    pairs = list(zip(times["plain"], times["hooked"], strict=True))[3:]
    result = {name: statistics.median(values[3:]) for name, values in times.items()}
    result["ratio"] = statistics.median(hooked / plain for plain, hooked in pairs)
    print(json.dumps(result), flush=True)
    os._exit(0)  # torch may abort while it takes down its groups


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
