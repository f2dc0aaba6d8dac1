"""What the hosts do in ``benchmarks/collectives.py``: every contender in turn, on a shared clock.

The hosts of a lab share one monotonic clock, so ranks start a call at the same agreed moment, and what is measured
is the time until the last rank has the result: since the last rank started, or the root of a broadcast. Rank 0
prints a line of JSON a contender.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from headway.collectives import Executor

LONG_S = 1.0
"""A call that takes longer is measured once, after one call to warm up."""


def gather(executor: Executor, values: list[float]) -> torch.Tensor:
    """Return all ranks' values, one row per rank."""
    return executor.all_gather(torch.tensor(values, dtype=torch.float64), "one_shot")


def call_of(executor: Executor, collective: str, algorithm: str, num_bytes: int) -> Callable[[], object]:
    """Return the call to time; ``num_bytes`` is what each rank holds at the end."""
    if collective == "all_gather":
        message = torch.ones(num_bytes // executor.num_ranks, dtype=torch.uint8)
        return lambda: executor.all_gather(message, algorithm)
    tensor = torch.zeros(num_bytes // 4)
    if collective == "broadcast":
        return lambda: executor.broadcast(tensor, 0, algorithm)
    return lambda: executor.all_reduce(tensor, algorithm)


def measure(
    executor: Executor, call: Callable[[], object], latency_s: float, num_calls: int, *, from_root: bool
) -> list[float]:
    """Return the seconds of each of some calls, until the last rank is done."""
    slowest_s = gather(executor, [timed(call)]).max().item()
    if slowest_s > LONG_S:
        num_calls = 1
    else:
        timed(call)  # the second of the two lanes
    begin = gather(executor, [time.monotonic()]).max().item() + 0.02 + 2 * latency_s
    times = []
    for number in range(num_calls):
        time.sleep(max(0.0, begin + number * (1.3 * slowest_s + 0.01) - time.monotonic()))
        start = time.monotonic()
        call()
        times += [start, time.monotonic()]
    rows = gather(executor, times)
    starts, ends = rows[:, 0::2], rows[:, 1::2]
    begins = starts[0] if from_root else starts.amax(dim=0)
    return (ends.amax(dim=0) - begins).tolist()


def timed(call: Callable[[], object]) -> float:
    """Return the time of a call on this rank."""
    start = time.monotonic()
    call()
    return time.monotonic() - start


def main() -> None:
    """Run the contenders that the first argument lists as (collective, algorithm, bytes)."""
    contenders, latency_s, num_calls = json.loads(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    executor = Executor(timeout_s=120, scratch_bytes=1 << 26)
    for collective, algorithm, num_bytes in contenders:
        call = call_of(executor, collective, algorithm, num_bytes)
        seconds = measure(executor, call, latency_s, num_calls, from_root=collective == "broadcast")
        if executor.rank == 0:
            line = {"collective": collective, "algorithm": algorithm, "num_bytes": num_bytes, "seconds": seconds}
            print(json.dumps(line | {"median_s": statistics.median(seconds)}), flush=True)
    dist.barrier()
    os._exit(0)  # torch may abort while it takes down its groups


if __name__ == "__main__":
    main()
