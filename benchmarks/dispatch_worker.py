"""One of two ranks on loopback: how long does a 4-byte all-reduce take, from call to return?"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

from headway.collectives import Executor

ALGORITHMS = ("torch.distributed", "native", "one_shot", "ring")
NUM_ROUNDS, NUM_CALLS = 7, 500


def main(store: str, rank: int) -> None:
    """Take the algorithms in turn, several times over; print the median of each in microseconds."""
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    executor = Executor()
    tensor = torch.ones(1)
    times: dict[str, list[float]] = {name: [] for name in ALGORITHMS}
    for name in NUM_ROUNDS * ALGORITHMS:
        dist.barrier()
        start = time.perf_counter()
        for _ in range(NUM_CALLS):
            if name == "torch.distributed":
                dist.all_reduce(tensor)
            else:
                executor.all_reduce(tensor, name)
        times[name].append((time.perf_counter() - start) / NUM_CALLS * 1e6)
    dist.barrier()
    print(json.dumps({name: statistics.median(values) for name, values in times.items()}), flush=True)
    os._exit(0)  # torch may abort while it takes down its groups


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
