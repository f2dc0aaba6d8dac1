"""What does gossip learn? Every algorithm and compressor on the same work as an all-reduce, eight workers on a ring.

All workers are in one process, with the steps of `headway.gossip.wrap`: time does not matter. Target: dcd with 8 bits
and choco with 4 within 1 point of all-reduce.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

from headway.compress import Compressor, Sign, StochasticQuantizer, TopK
from headway.gossip import InProcessGossip
from headway.train import Task, cnn, load_images

NUM_WORKERS = 8
BATCH = 16
ALL_REDUCE = "all-reduce"
CONTENDERS: dict[str, tuple[str, Compressor | None]] = {
    ALL_REDUCE: (ALL_REDUCE, None),
    "dpsgd": ("dpsgd", None),
    "naive 8 bits": ("naive", StochasticQuantizer(bits=8)),
    "naive 4 bits": ("naive", StochasticQuantizer(bits=4)),
    "dcd 8 bits": ("dcd", StochasticQuantizer(bits=8)),
    "dcd 4 bits": ("dcd", StochasticQuantizer(bits=4)),
    "ecd 8 bits": ("ecd", StochasticQuantizer(bits=8, step="auto")),
    "choco 8 bits": ("choco", StochasticQuantizer(bits=8)),
    "choco 4 bits": ("choco", StochasticQuantizer(bits=4)),
    "choco 2 bits": ("choco", StochasticQuantizer(bits=2)),
    "choco 1 bit": ("choco", StochasticQuantizer(bits=1)),
    "choco sign": ("choco", Sign()),
    "choco top-1%": ("choco", TopK(0.01)),
}


class Workers:
    """One model that takes the place of every worker's in turn, and the workers' momenta."""

    def __init__(self, task: Task, *, lr: float, momentum: float, seed: int) -> None:
        torch.manual_seed(seed)
        self.task, self.lr, self.momentum = task, lr, momentum
        self.model = cnn()
        self.generators = [torch.Generator().manual_seed(1000 * seed + rank) for rank in range(NUM_WORKERS)]
        self.velocities = torch.zeros(NUM_WORKERS, self.flat.numel())

    @property
    def flat(self) -> Tensor:
        """The model's parameters."""
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()

    def updates(self, models: Tensor) -> Tensor:
        """Return the updates of SGD with momentum, a row for each worker's model and batch."""
        for rank, generator in enumerate(self.generators):
            nn.utils.vector_to_parameters(models[rank].clone(), self.model.parameters())
            self.model.zero_grad()
            images, labels = self.task.train.batch(BATCH, generator)
            nn.functional.cross_entropy(self.model(images), labels).backward()
            gradient = torch.cat([parameter.grad.flatten() for parameter in self.model.parameters()])
            self.velocities[rank].mul_(self.momentum).add_(gradient)
        return -self.lr * self.velocities

    @torch.no_grad()
    def accuracy(self, model: Tensor) -> float:
        """Return the share of test images that a model gets right."""
        nn.utils.vector_to_parameters(model.clone(), self.model.parameters())
        parts = zip(self.task.test.inputs.split(1000), self.task.test.targets.split(1000), strict=True)
        right = sum(int((self.model(images).argmax(1) == labels).sum()) for images, labels in parts)
        return right / len(self.task.test)


def train(name: str, task: Task, *, steps: int, lr: float, momentum: float, seed: int) -> dict[str, float | str | int]:
    """Train with one contender; return the accuracy of the mean model and how far models are apart."""
    algorithm, compressor = CONTENDERS[name]
    workers = Workers(task, lr=lr, momentum=momentum, seed=seed)
    start, distance = time.perf_counter(), 0.0
    if algorithm == ALL_REDUCE:
        mean = workers.flat
        for _ in range(steps):
            mean = mean + workers.updates(mean.expand(NUM_WORKERS, -1)).mean(dim=0)
    else:
        ranks = InProcessGossip(workers.flat, NUM_WORKERS, algorithm, "ring", compressor, seed=seed)
        for _ in range(steps):
            ranks.step(workers.updates(ranks.models))
        mean = ranks.models.mean(dim=0)
        distance = float((ranks.models - mean).square().sum(dim=1).mean().sqrt())
    return {
        "contender": name,
        "seed": seed,
        "accuracy": workers.accuracy(mean) if math.isfinite(float(mean.sum())) else math.nan,
        "distance": distance,
        "norm": float(mean.norm()),
        "seconds": time.perf_counter() - start,
    }


def main(
    output: Annotated[Path, typer.Option(help="Output file, a line of JSON for each run.")] = Path(
        "build/gossip_learning.jsonl"
    ),
    steps: Annotated[int, typer.Option(min=1, help="Steps of a run.")] = 300,
    lr: Annotated[float, typer.Option(help="The learning rate.")] = 0.05,
    momentum: Annotated[float, typer.Option(help="Momentum of SGD.")] = 0.9,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 3,
    only: Annotated[str | None, typer.Option(help="Contenders, with commas between them.")] = None,
    data: Annotated[Path | None, typer.Option(help="A folder of idx files.")] = None,
) -> None:
    """Train with every contender, and write the results."""
    task = load_images(data)
    names = list(CONTENDERS) if only is None else only.split(",")
    for name in names:
        if name not in CONTENDERS:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(CONTENDERS)}")
    output.parent.mkdir(exist_ok=True, parents=True)
    accuracies: dict[str, list[float]] = {}
    with output.open("w") as file:
        for seed in range(seeds):
            for name in names:
                seen = train(name, task, steps=steps, lr=lr, momentum=momentum, seed=seed)
                file.write(json.dumps(seen) + "\n")
                file.flush()
                typer.echo(
                    f"seed {seed}, {name}: {100 * float(seen['accuracy']):.2f}%, models {float(seen['distance']):.3f} "
                    f"apart of {float(seen['norm']):.1f}, {float(seen['seconds']):.0f} s"
                )
                accuracies.setdefault(name, []).append(float(seen["accuracy"]))
    if ALL_REDUCE in accuracies:
        for name, reached in accuracies.items():
            points = 100 * (statistics.mean(reached) - statistics.mean(accuracies[ALL_REDUCE]))
            limit = " (limit -1)" if name in ("dcd 8 bits", "choco 4 bits") else ""
            typer.echo(f"{name}: {100 * statistics.mean(reached):.2f}%, {points:+.2f} points{limit}")


if __name__ == "__main__":
    typer.run(main)
