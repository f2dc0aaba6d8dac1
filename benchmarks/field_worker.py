"""What the hosts do in ``benchmarks/field.py``: one contender trains for some steps, and rank 0 prints their seconds.

field_worker.py MODEL CONTENDER NUM_STEPS
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import headway
from headway.train.models import resnet

RATIO = 0.01


def wide(width: int) -> Callable[[], nn.Module]:
    """Two hidden layers of this width."""
    return lambda: nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "5M": (wide(2200), (8, 64)),
    "124M": (wide(11_100), (8, 64)),
    "resnet": (resnet, (8, 1, 28, 28)),
}
CONTENDERS: dict[str, Callable[[DistributedDataParallel], Any]] = {
    "DDP": lambda ddp: None,
    "all-gather 1%": lambda ddp: headway.attach(ddp, headway.Fixed(exchange="allgather_topk", ratio=RATIO)),
    "adaptive": lambda ddp: headway.attach(ddp),
    "buffers by DDP": lambda ddp: headway.attach(
        ddp, headway.Fixed(exchange="allgather_topk", ratio=RATIO), buffers="ddp"
    ),
}


def main() -> None:
    """Train, and print the seconds of every step and the plan at the end."""
    model, contender, num_steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    make, shape = MODELS[model]
    torch.manual_seed(0)
    ddp = DistributedDataParallel(make())
    handle = CONTENDERS[contender](ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.001)
    torch.manual_seed(1 + dist.get_rank())
    inputs, labels = torch.randn(shape), torch.randint(10, shape[:1])
    seconds = [step(ddp, optimizer, inputs, labels) for _ in range(num_steps)]
    if dist.get_rank() == 0:
        plan = "" if handle is None else handle.plan.label
        num_parameters = sum(parameter.numel() for parameter in ddp.parameters())
        print(json.dumps({"seconds": seconds, "plan": plan, "num_parameters": num_parameters}), flush=True)
    if handle is not None:
        handle.close()
    dist.destroy_process_group()


def step(ddp: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, labels: Tensor) -> float:
    """Take a step, and return its seconds."""
    start = time.monotonic()
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(inputs), labels).backward()
    optimizer.step()
    return time.monotonic() - start


if __name__ == "__main__":
    main()
