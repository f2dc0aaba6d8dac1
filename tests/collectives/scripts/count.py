"""Run some all-reduces several times, and check the sums: count.py ALGORITHMS NUMEL NUM_CALLS."""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist

from headway.collectives import Executor

algorithms, numel, num_calls = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
executor = Executor(timeout_s=30)
for algorithm in algorithms:
    for call in range(num_calls):
        result = executor.all_reduce(torch.full((numel,), float(call + executor.rank)), algorithm)
        expected = sum(float(call + rank) for rank in range(executor.num_ranks))
        assert torch.equal(result, torch.full((numel,), expected))
print("all sums are right", flush=True)
dist.barrier()
os._exit(0)  # torch may abort while it takes down its groups
