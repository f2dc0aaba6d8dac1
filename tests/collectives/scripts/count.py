"""Run one collective again and again, check it, and print how many bytes this rank should have sent."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

from headway.collectives import Collective, Executor, build_for

algorithm, numel, num_calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
executor = Executor(timeout_s=30)
for call in range(num_calls):
    result = executor.all_reduce(torch.full((numel,), float(call + executor.rank)), algorithm)
    expected = sum(float(call + rank) for rank in range(executor.num_ranks))
    assert torch.equal(result, torch.full((numel,), expected))
schedule = build_for(Collective.ALL_REDUCE, algorithm, executor.num_ranks, 4 * numel)
print(f"sent {4 * num_calls * schedule.sent(executor.rank, numel)}", flush=True)
dist.barrier()
os._exit(0)  # torch may abort while it takes down its groups
