"""What the hosts do in ``benchmarks/gossip.py``: train the same model on the same data with every contender in turn.

Rank 0 prints a line of JSON for each contender: seconds of a step, bytes a rank sends, and the loss on the way.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import headway
from headway.compress import Sign, StochasticQuantizer
from headway.train import Samples, cnn, load_images

BATCH, LEARNING_RATE = 16, 0.05
NUM_WARM_UP, MOST_SETTLING, LEAST_STEPS, MOST_STEPS = 3, 9, 4, 60
PATIENCE_S = 300.0


class Alone:
    """Training without a network: the time of a step alone."""

    def __init__(self) -> None:
        self.model = fresh()
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)
        self.num_steps = 0
        self.close: Callable[[], None] = lambda: None

    def sent_bytes(self) -> int:
        """Return what this rank has sent so far."""
        return 0

    def chosen(self) -> str:
        """Return what was chosen, if there was a choice."""
        return ""


class Plain(Alone):
    """DDP, plain or with our hook."""

    def __init__(self, config: headway.Fixed | headway.Adaptive | None = None) -> None:
        super().__init__()
        self.model = DistributedDataParallel(self.model)
        self.handle = None if config is None else headway.attach(self.model, config)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)
        if self.handle is not None:
            self.close = self.handle.close

    def sent_bytes(self) -> int:
        """Return what this rank has sent so far; a ring's share for plain DDP, which does not say."""
        if self.handle is not None:
            return self.handle.statistics().wire_bytes
        num_ranks = dist.get_world_size()
        return round(self.num_steps * 2 * (num_ranks - 1) / num_ranks * 4 * numel_of(self.model))

    def chosen(self) -> str:
        """Return the plan in force."""
        if self.handle is None:
            return ""
        record = self.handle.records[-1]
        return f"{record.exchange} {record.ratio:.3g} {record.algorithm}"


class Gossiping(Alone):
    """Gossip on a ring."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        inner = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)
        self.gossip = headway.gossip.wrap(self.model, inner, timeout_s=PATIENCE_S, **options)
        self.optimizer = self.gossip
        self.close = self.gossip.close

    def sent_bytes(self) -> int:
        """Return what this rank has sent so far."""
        return self.gossip.statistics().wire_bytes


CONTENDERS: dict[str, Callable[[], Alone]] = {
    "alone": Alone,
    "DDP": Plain,
    "ours adaptive": lambda: Plain(headway.Adaptive(timeout_s=PATIENCE_S)),
    "ours allgather_topk 1%": lambda: Plain(headway.Fixed(exchange="allgather_topk", ratio=0.01, timeout_s=PATIENCE_S)),
    "dpsgd": lambda: Gossiping(algorithm="dpsgd"),
    "dcd 8 bits": lambda: Gossiping(algorithm="dcd"),
    "dcd 8 bits, every 4th step": lambda: Gossiping(algorithm="dcd", local_steps=4),
    "ecd 8 bits": lambda: Gossiping(algorithm="ecd"),
    "choco 4 bits": lambda: Gossiping(algorithm="choco", compressor=StochasticQuantizer(bits=4)),
    "choco sign": lambda: Gossiping(algorithm="choco", compressor=Sign()),
}


def fresh() -> nn.Module:
    """Return the model that all ranks start from."""
    torch.manual_seed(0)
    return cnn()


def numel_of(model: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def train(contender: Alone, samples: Samples, budget_s: float) -> dict[str, Any]:
    """Train for about ``budget_s``; return the measurements, the same on all ranks."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses: list[float] = []
    times = [time.monotonic()]

    def take(num_steps: int) -> None:
        for _ in range(num_steps):
            images, labels = samples.batch(BATCH, generator)
            contender.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(contender.model(images), labels)
            loss.backward()
            contender.optimizer.step()
            contender.num_steps = len(losses) + 1
            losses.append(loss.item())
            times.append(time.monotonic())

    take(NUM_WARM_UP)
    steps = torch.tensor([budget_s * (NUM_WARM_UP - 1) / (times[-1] - times[1])])
    dist.broadcast(steps, 0)
    num_steps = 4 * -(-min(max(int(steps), LEAST_STEPS), MOST_STEPS) // 4)  # whole exchanges of every 4th step
    take(min(int(steps), MOST_SETTLING))
    dist.barrier()
    start, sent_before = time.monotonic(), contender.sent_bytes()
    take(num_steps)
    ends = torch.tensor([start, -time.monotonic()], dtype=torch.float64)
    sent = contender.sent_bytes() - sent_before
    dist.all_reduce(ends, dist.ReduceOp.MIN)
    mean_losses = torch.tensor(losses)
    dist.all_reduce(mean_losses)
    return {
        "seconds": (-ends[1] - ends[0]).item() / num_steps,
        "bytes": sent / num_steps,
        "num_steps": num_steps,
        "times": [each - times[0] for each in times[1:]],
        "losses": (mean_losses / dist.get_world_size()).tolist(),
        "chosen": contender.chosen(),
    }


def main() -> None:
    """Take every contender in turn."""
    names = [name.replace(";", ",") for name in sys.argv[1].split(",")]
    budget_s, folder = float(sys.argv[2]), sys.argv[3] or None
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    samples = load_images(folder).train
    for name in names:
        contender = CONTENDERS[name]()
        dist.barrier()
        found = train(contender, samples, budget_s)
        if dist.get_rank() == 0:
            print(json.dumps({"name": name, **found}), flush=True)
        contender.close()
    dist.barrier()
    os._exit(0)  # torch may abort while it takes down its groups


if __name__ == "__main__":
    main()
