"""One rank of a training that ends in one of the ways that scripts do; prints when, as a line of JSON, and ends.

ending.py STORE RANK HOW: no script here cleans up after itself, except where HOW says so.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import headway
from headway.network import Calibration
from headway.tuner import building

LINK = headway.Link(latency_s=0.001, bandwidth_bps=1e8)
building.calibrate = lambda executor: Calibration(link=LINK)  # measuring it takes longer than all the rest
NUM_RANKS, NUM_STEPS, VICTIM = 2, 4, 1
LOST = Path(f"{sys.argv[1]}-lost")
"""A file that is there once a rank has been lost."""


class Failing(torch.autograd.Function):
    """Raises in backward, once the layers above have their gradients."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ZeroDivisionError("made to fail in backward")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(40, 40) for _ in range(4))
        self.fails = False

    def forward(self, x):
        for place, layer in enumerate(self.layers):
            x = layer(Failing.apply(x) if self.fails and place == 2 else x)
        return x


def attach(bucket_cap_mb: float = 0.005) -> tuple[DistributedDataParallel, headway.HookState]:
    torch.manual_seed(0)
    ddp = DistributedDataParallel(Model(), bucket_cap_mb=bucket_cap_mb)
    return ddp, headway.attach(ddp, headway.Fixed(exchange="allgather_topk", fusion="bucket", interval=1))


def step(ddp: DistributedDataParallel) -> None:
    ddp(torch.ones(2, 40)).sum().backward()


def train(ddp: DistributedDataParallel) -> None:
    for _ in range(NUM_STEPS):
        step(ddp)


def say(**what: object) -> None:
    print(json.dumps({"at": time.monotonic(), **what}), flush=True)


def lose(ddp: DistributedDataParallel) -> None:
    """Take steps until a rank is lost; say which, and end as a script that does not expect it."""
    start = time.monotonic()
    try:
        for _ in range(1000):
            step(ddp)
    except headway.PeerLost as error:
        say(lost=error.ranks, seconds=time.monotonic() - start)
        LOST.touch()
        raise


def fail_in_backward(ddp: DistributedDataParallel, how: str) -> None:
    ddp.module.fails = True
    try:
        step(ddp)
    except ZeroDivisionError:
        say()
        if how == "backward raises":
            raise
        while not LOST.exists():  # the other learns of it while this rank sits elsewhere
            time.sleep(0.01)
        say()


def end(how: str, ddp: DistributedDataParallel, handle: headway.HookState) -> None:
    if how == "second model":
        train(attach()[0])
    elif how == "closed, second model":
        handle.close()
        second, handle = attach()
        train(second)
    elif how == "second process group":
        dist.destroy_process_group()
        initialise()
        train(attach()[0])
    if "destroy" in how:
        dist.destroy_process_group()
    if how.endswith("close"):
        handle.close()
    say()
    if how == "raise":
        raise ZeroDivisionError("made to fail")
    if how == "exit":
        sys.exit(3)


def initialise() -> None:
    store, rank = sys.argv[1], int(sys.argv[2])
    initialise.count = getattr(initialise, "count", 0) + 1
    store = dist.FileStore(f"{store}-{initialise.count}", NUM_RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=NUM_RANKS)


def main(how: str) -> None:
    torch.set_num_threads(1)
    initialise()
    ddp, handle = attach(25.0) if how.endswith("of one bucket") else attach()
    train(ddp)
    if not how.startswith(("one", "backward")):
        end(how, ddp, handle)
    elif dist.get_rank() != VICTIM:
        lose(ddp)
    elif how.startswith("backward"):
        fail_in_backward(ddp, how)
    elif how == "one raises in a block":
        with handle:
            say()
            raise ZeroDivisionError("made to fail")
    elif how == "one raises, then closes":
        try:
            say()
            raise ZeroDivisionError("made to fail")
        finally:
            handle.close()
    else:
        end(how.removeprefix("one ").rstrip("s"), ddp, handle)


if __name__ == "__main__":
    main(sys.argv[3])
