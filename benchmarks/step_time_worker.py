"""What the hosts do in ``benchmarks/step_time.py``: train a CNN with every contender in turn.

step_time_worker.py [PREFIX|PREFIX... [LATENCY_S BANDWIDTH_BPS]]: only contenders whose names begin so, on this link.

Rank 0 prints a line of JSON a contender: seconds a step, from the first rank's start to the last rank's end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

import headway
from headway.train import cnn

RATIO = 0.01
BATCH = 16
NUM_WARM_UP, NUM_STEPS = 6, 10
"""Buckets have settled after the sixth step."""
NUM_SETTLING = 60
"""Steps before those of the tuner are timed."""
ONE_BUCKET_MB = 1000


class PlainTopK:
    """Top-k with all-gather the obvious way: torch.topk, two all-gathers, error feedback in a tensor a bucket."""

    def __init__(self) -> None:
        self.residuals: dict[int, Tensor] = {}

    def average(self, bucket: dist.GradBucket) -> Tensor:
        """Average a bucket."""
        gradient = bucket.buffer()
        total = gradient + self.residuals.get(gradient.numel(), 0)
        k = max(1, int(RATIO * total.numel()))
        indices = total.abs().topk(k).indices
        values = total[indices]
        total[indices] = 0
        self.residuals[gradient.numel()] = total
        num_ranks = dist.get_world_size()
        all_values = [torch.empty_like(values) for _ in range(num_ranks)]
        all_indices = [torch.empty_like(indices) for _ in range(num_ranks)]
        dist.all_gather(all_values, values)
        dist.all_gather(all_indices, indices)
        gradient.zero_()
        for theirs, places in zip(all_values, all_indices, strict=True):
            gradient.index_add_(0, places, theirs)
        return gradient.div_(num_ranks)


def plain_topk_hook(state: PlainTopK, bucket):
    """Average a bucket, and be done."""
    future: Future = Future()
    future.set_result(state.average(bucket))
    return future


def plain(bucket_mb: float = 25) -> DistributedDataParallel:
    """Wrap a new model."""
    torch.manual_seed(0)
    return DistributedDataParallel(cnn(), bucket_cap_mb=bucket_mb)


def power_sgd(approx_rank: int) -> DistributedDataParallel:
    """PyTorch's PowerSGD, with one bucket: with more it hangs on Gloo."""
    ddp = plain(ONE_BUCKET_MB)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=approx_rank, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return ddp


def with_hook(state: object, hook: Callable) -> DistributedDataParallel:
    """Wrap a new model with another hook of the peers."""
    ddp = plain()
    ddp.register_comm_hook(state, hook)
    return ddp


def ours(exchange: str, values: str = "fp32") -> DistributedDataParallel:
    """Wrap a new model with a hook of ours, which chooses algorithm and fusion, by a link that is given or measured."""
    link = headway.Link(latency_s=float(sys.argv[2]), bandwidth_bps=float(sys.argv[3])) if sys.argv[2:] else None
    return attached(headway.Fixed(exchange=exchange, ratio=RATIO, values=values, link=link, timeout_s=120))


def attached(config: headway.Fixed | headway.Adaptive) -> DistributedDataParallel:
    """Wrap a new model with a hook of ours."""
    ddp = plain()
    ddp.handle = headway.attach(ddp, config)
    return ddp


CONTENDERS: dict[str, Callable[[], DistributedDataParallel]] = {
    "DDP": plain,
    "fp16 hook": lambda: with_hook(None, default_hooks.fp16_compress_hook),
    "PowerSGD rank 1": lambda: power_sgd(1),
    "PowerSGD rank 4": lambda: power_sgd(4),
    "topk + all_gather": lambda: with_hook(PlainTopK(), plain_topk_hook),
    "ours dense": lambda: ours("dense"),
    "ours allgather_topk": lambda: ours("allgather_topk"),
    "ours allgather_topk int8": lambda: ours("allgather_topk", "int8"),
    "ours allgather_topk sign": lambda: ours("allgather_topk", "sign"),
    "ours union_topk": lambda: ours("union_topk"),
    "ours union_topk fp16": lambda: ours("union_topk", "fp16"),
    "ours star_topk": lambda: ours("star_topk"),
    "ours star_topk fp16": lambda: ours("star_topk", "fp16"),
    "ours var_topk": lambda: ours("var_topk"),
    "ours randomk": lambda: ours("randomk"),
    "adaptive": lambda: attached(headway.Adaptive(timeout_s=120)),
}


def measure(ddp: DistributedDataParallel, num_warm_up: int) -> float:
    """Return the seconds of a step, on the clock that all hosts share."""
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    torch.manual_seed(1 + dist.get_rank())  # every worker has data of its own
    images, labels = torch.randn(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))
    start = 0.0
    for step in range(num_warm_up + NUM_STEPS):
        if step == num_warm_up:
            dist.barrier()
            start = time.monotonic()
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(images), labels).backward()
        optimizer.step()
    times = torch.tensor([start, -time.monotonic()], dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MIN)
    return (-times[1] - times[0]).item() / NUM_STEPS


def main() -> None:
    """Take every contender in turn whose name begins as the argument says."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name, make in CONTENDERS.items():
        if not name.startswith(tuple("".join(sys.argv[1:2]).split("|"))):
            continue
        ddp = make()
        seconds = measure(ddp, NUM_SETTLING if name == "adaptive" else NUM_WARM_UP)
        handle = getattr(ddp, "handle", None)
        chosen = "" if handle is None else f"{handle.plan.fusion}, {handle.records[-1].algorithm}"
        if dist.get_rank() == 0:
            print(json.dumps({"name": name, "seconds": seconds, "chosen": chosen}), flush=True)
        if handle is not None:
            handle.close()
    dist.barrier()
    os._exit(0)  # torch may abort while it takes down its groups


if __name__ == "__main__":
    main()
