"""How much does a step teach? Every exchange at several ratios, without a network: what accuracy after how many steps.

Eight workers are threads of one process; exchanges are the real ones, collectives are sums in memory. What comes out
ties the gain of an exchange to the steps that it needs, which is what a policy has to know.
"""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

from headway.compress import BucketMemory, Shape
from headway.exchange import Job, Plan, exchange_of
from headway.kernels import gain_curve
from headway.train import Task, cnn, load_images

NUM_WORKERS = 8
BATCH = 16
EVERY = 10
NUM_TESTED = 2000


class Hall:
    """A room in which threads meet: each lays down a tensor, and sees all."""

    def __init__(self, num_ranks: int) -> None:
        self.tensors: list[Tensor] = [torch.empty(0)] * num_ranks
        self.barrier = threading.Barrier(num_ranks)


class HallChannel:
    """A channel between the threads of a hall."""

    def __init__(self, hall: Hall, rank: int) -> None:
        self.hall, self.rank, self.num_ranks = hall, rank, len(hall.tensors)

    def _meet(self, tensor: Tensor) -> list[Tensor]:
        self.hall.tensors[self.rank] = tensor.clone()
        self.hall.barrier.wait()
        seen = list(self.hall.tensors)
        self.hall.barrier.wait()
        return seen

    def all_reduce(self, tensor: Tensor, algorithm: str) -> Tensor:
        """Sum in place."""
        return tensor.copy_(torch.stack(self._meet(tensor)).sum(dim=0))

    def all_gather(self, message: Tensor, algorithm: str) -> Tensor:
        """Return every rank's message."""
        return torch.stack(self._meet(message))

    def broadcast(self, tensor: Tensor, root: int, algorithm: str) -> Tensor:
        """Replace a tensor by the root's."""
        return tensor.copy_(self._meet(tensor)[root])


def gradient_of(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, float]:
    """Return the flat gradient of one worker's batch, and its loss."""
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]), loss.item()


@torch.no_grad()
def accuracy(model: nn.Module, task: Task) -> float:
    """Return the share of test images that it gets right."""
    chosen = slice(0, NUM_TESTED)
    return (model(task.test.inputs[chosen]).argmax(1) == task.test.targets[chosen]).float().mean().item()


def train(plan: Plan, task: Task, *, steps: int, lr: float, momentum: float, seed: int) -> list[dict[str, float]]:
    """Train with one plan; return what was seen every few steps."""
    torch.manual_seed(seed)
    model = cnn()
    shape = Shape(tuple(parameter.numel() for parameter in model.parameters()))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    generators = [torch.Generator().manual_seed(1000 * seed + rank) for rank in range(NUM_WORKERS)]
    memories = [BucketMemory(shape) for _ in range(NUM_WORKERS)]
    channels = [HallChannel(hall, rank) for hall in [Hall(NUM_WORKERS)] for rank in range(NUM_WORKERS)]
    exchange, seen = exchange_of(plan), []
    with ThreadPoolExecutor(NUM_WORKERS) as pool:
        for step in range(1, steps + 1):
            found = [gradient_of(model, *task.train.batch(BATCH, generator)) for generator in generators]
            gradients = [gradient for gradient, _ in found]
            look = step % EVERY == 0
            curves = []
            if look:
                sums = [g + m.residual if m.is_used else g for g, m in zip(gradients, memories, strict=True)]
                curves = [gain_curve(each).at(plan.sent_ratio) for each in sums]
            jobs = [
                Job(step=step, bucket=0, gradient=gradient, memory=memory)
                for gradient, memory in zip(gradients, memories, strict=True)
            ]
            gains = list(pool.map(exchange.run, jobs, channels))
            offset = 0
            for parameter in model.parameters():
                parameter.grad = gradients[0][offset : offset + parameter.numel()].view_as(parameter)
                offset += parameter.numel()
            optimizer.step()
            if look:
                seen.append(
                    {
                        "step": step,
                        "accuracy": accuracy(model, task),
                        "loss": sum(loss for _, loss in found) / NUM_WORKERS,
                        "gain": sum(gains) / NUM_WORKERS,
                        "own_gain": sum(curves) / NUM_WORKERS,
                    }
                )
    return seen


def main(
    output: Annotated[Path, typer.Option(help="Where the figures go, a line of JSON a run.")] = Path(
        "build/learning.jsonl"
    ),
    steps: Annotated[int, typer.Option(min=10, help="How many steps a run has.")] = 200,
    lr: Annotated[float, typer.Option(help="The learning rate.")] = 0.05,
    momentum: Annotated[float, typer.Option(help="Of SGD.")] = 0.9,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 2,
    data: Annotated[Path | None, typer.Option(help="A folder of idx files.")] = None,
) -> None:
    """Train with every plan, and write what was seen."""
    torch.set_num_threads(1)
    task = load_images(data)
    plans = [Plan(exchange="dense")] + [
        Plan(exchange=exchange, ratio=ratio)
        for exchange in ("allgather_topk", "star_topk", "var_topk", "randomk")
        for ratio in (0.1, 0.03, 0.01, 0.003, 0.001)
    ]
    output.parent.mkdir(exist_ok=True, parents=True)
    for seed in range(seeds):
        for plan in plans:
            start = time.perf_counter()
            seen = train(plan, task, steps=steps, lr=lr, momentum=momentum, seed=seed)
            with output.open("a") as lines:
                said = {"exchange": plan.exchange, "ratio": plan.ratio, "seed": seed, "lr": lr, "momentum": momentum}
                print(json.dumps({**said, "seen": seen}), file=lines)
            print(
                f"{task.name} {plan.exchange} {plan.ratio} seed {seed}: {seen[-1]['accuracy']:.1%} after {steps} "
                f"steps, gain {seen[-1]['gain']:.3f}, {time.perf_counter() - start:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    typer.run(main)
