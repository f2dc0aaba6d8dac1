"""One of two workers of ``benchmarks/long_run.py``: long_run_worker.py STORE NUM_STEPS EVERY RANK.

Every so many steps rank 0 prints, as a line of JSON, what would grow if anything were left behind.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import headway
from headway.collectives import Executor

WIDTHS = (64, 128, 96, 160, 72, 112, 48)
BUCKET_MB = 0.02
"""A bucket for each layer."""
SCRATCH_BYTES = 300_000
"""Less than half of what lanes for all buckets would take."""
SUM_SIZES = range(100, 4100, 100)
SUMS_EVERY = 4


def make_model() -> tuple[DistributedDataParallel, headway.HookState]:
    """Wrap a new model; every bucket is averaged by a ring of its own."""
    torch.manual_seed(0)
    layers = [nn.Linear(width, following) for width, following in pairwise(WIDTHS)]
    ddp = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=BUCKET_MB)
    config = headway.Fixed(exchange="dense", algorithm="ring", fusion="bucket")
    state = headway.HookState(config, module=ddp.module)
    # There is no option for it. Lanes of the calibration, which is over, are evicted when the first buckets come.
    state._averaging.executor._lanes._max_bytes = SCRATCH_BYTES
    ddp.register_comm_hook(state, headway.hook)
    return ddp, state


def count_evictions(**executors: Executor) -> Counter[str]:
    """Return a counter of the lanes that each executor evicts from now on."""
    counter: Counter[str] = Counter()
    for name, executor in executors.items():
        evict = executor._lanes._evict

        def counted(known, name=name, evict=evict) -> None:
            counter[name] += len(known.lanes)
            evict(known)

        executor._lanes._evict = counted
    return counter


def look(executors: list[Executor]) -> dict[str, int]:
    """Return what this process uses, and what its executors keep."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    lanes = [executor._lanes for executor in executors]
    return {
        "kilobytes": int(status["VmRSS"].split()[0]),
        "num_files": len(os.listdir("/proc/self/fd")),
        "num_threads": len(os.listdir("/proc/self/task")),
        "num_lanes": sum(len(known.lanes) for cache in lanes for known in cache._kinds.values()),
        "num_ids": sum(len(cache._ids) - 1 for cache in lanes),
        "lane_bytes": sum(cache.num_bytes for cache in lanes),
    }


def check_equal(ddp: DistributedDataParallel) -> None:
    """Raise unless all ranks have the same parameters to the bit."""
    own = torch.cat([parameter.detach().flatten() for parameter in ddp.parameters()])
    both = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(both, own)
    assert torch.equal(both[0], both[1]), "the ranks' parameters differ"


def main(store: str, num_steps: int, every: int, rank: int) -> None:
    """Train, and look every so often."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    ddp, state = make_model()
    sums = Executor(scratch_bytes=SCRATCH_BYTES)
    evicted = count_evictions(hook=state._averaging.executor, sums=sums)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.001)
    order, start = random.Random(0), time.perf_counter()
    torch.manual_seed(1 + rank)  # every worker has data of its own
    for step in range(1, num_steps + 1):
        optimizer.zero_grad()
        ddp(torch.randn(8, WIDTHS[0])).square().mean().backward()
        optimizer.step()
        if step % SUMS_EVERY == 0:
            total = sums.all_reduce(torch.full((order.choice(SUM_SIZES),), float(step)), "ring")
            assert total[-1] == 2 * step
        if step % every == 0:
            check_equal(ddp)
            sample = {"step": step, **look([state._averaging.executor, sums])}
            sample |= {f"num_evicted_{name}": evicted[name] for name in ("hook", "sums")}
            if rank == 0:
                print(json.dumps(sample | {"step_ms": (time.perf_counter() - start) / every * 1e3}), flush=True)
            start = time.perf_counter()
    dist.barrier()
    os._exit(0)  # torch may abort while it takes down its groups


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
