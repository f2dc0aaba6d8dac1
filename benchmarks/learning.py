"""How much does a step teach? Every exchange at several ratios, without a network: what accuracy after how many steps.

Eight workers are threads of one process; exchanges are the real ones, collectives are sums in memory. What comes out
ties the gain of an exchange to the steps that it needs, which is what a policy has to know.
"""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

from headway.compress import BucketMemory, Shape
from headway.exchange import Job, Plan, exchange_of
from headway.kernels import Momentum, Velocity, gain_curve
from headway.train import Task, cnn, load_images
from headway.train.models import resnet, transformer
from headway.train.text import load_text

NUM_WORKERS = 8
BATCH = 16
EVERY = 10
NUM_TESTED, NUM_GLANCED_AT, CHUNK = 10_000, 2000, 500


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


MODELS = {"cnn": cnn, "small": partial(cnn, width=16), "resnet": resnet, "transformer": transformer}


def gradient_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, float]:
    """Return the flat gradient of one worker's batch, and its loss."""
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]), loss.item()


@torch.no_grad()
def accuracy(model: nn.Module, task: Task, num_tested: int) -> float:
    """Return the share of test images, or characters, that it gets right."""
    model.eval()
    right = [
        (model(inputs).argmax(-1) == targets).float().flatten()
        for inputs, targets in zip(
            task.test.inputs[:num_tested].split(CHUNK), task.test.targets[:num_tested].split(CHUNK), strict=True
        )
    ]
    model.train()
    return torch.cat(right).mean().item()


def memory_of(shape: Shape, momentum: float | None) -> BucketMemory:
    """Return the memory of a worker, with momentum correction if it is given."""
    if momentum is None:
        return BucketMemory(shape)
    return BucketMemory(shape, velocity=Velocity.zeros(shape.numel, Momentum(momentum)))


def falling(step: int, steps: int) -> float:
    """Return the factor of the learning rate, which falls over the last quarter."""
    return min(1.0, (steps - step + 1) / (steps / 4))


def train(
    plan: Plan, task: Task, *, model_name: str, steps: int, lr: float, momentum: float, seed: int, is_corrected: bool
) -> list[dict[str, float]]:
    """Train with one plan; return what was seen every few steps."""
    torch.manual_seed(seed)
    model = MODELS[model_name](task.num_classes)
    shape = Shape(tuple(parameter.numel() for parameter in model.parameters()))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(
        model.parameters(), lr=lr, momentum=0.0 if is_corrected else momentum
    )
    if task.is_text:
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: falling(step + 1, steps))
    generators = [torch.Generator().manual_seed(1000 * seed + rank) for rank in range(NUM_WORKERS)]
    memories = [memory_of(shape, momentum if is_corrected else None) for _ in range(NUM_WORKERS)]
    channels = [HallChannel(hall, rank) for hall in [Hall(NUM_WORKERS)] for rank in range(NUM_WORKERS)]
    exchange, seen = exchange_of(plan), []
    with ThreadPoolExecutor(NUM_WORKERS) as pool:
        for step in range(1, steps + 1):
            found = [gradient_of(model, *task.train.batch(BATCH, generator)) for generator in generators]
            gradients = [gradient for gradient, _ in found]
            look = step % EVERY == 0
            curves = [own_gain(*pair, plan) for pair in zip(gradients, memories, strict=True)] if look else []
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
            schedule.step()
            if look:
                seen.append(
                    {
                        "step": step,
                        "accuracy": accuracy(model, task, NUM_TESTED if step == steps else NUM_GLANCED_AT),
                        "loss": sum(loss for _, loss in found) / NUM_WORKERS,
                        "gain": sum(gains) / NUM_WORKERS,
                        "own_gain": sum(own for own, _ in curves) / NUM_WORKERS,
                        "added_gain": sum(added for _, added in curves) / NUM_WORKERS,
                    }
                )
    return seen


def own_gain(gradient: Tensor, memory: BucketMemory, plan: Plan) -> tuple[float, float]:
    """Return what the worker's own top-k would send of G, and of what the step adds to the residual."""
    added = gradient if memory.velocity is None else memory.velocity.added_by(gradient)
    total = added + memory.residual if memory.is_used else added
    return gain_curve(total).at(plan.sent_ratio), gain_curve(added).at(plan.sent_ratio)


def steps_to(seen: list[dict[str, float]], loss: float) -> float | None:
    """Return after how many steps the mean of three looks at the training loss was this low; None if it never was."""
    losses = [each["loss"] for each in seen]
    for number in range(2, len(seen)):
        if sum(losses[number - 2 : number + 1]) / 3 <= loss:
            return seen[number]["step"]
    return None


def effort_of(seen: list[dict[str, float]], dense: list[dict[str, float]]) -> str:
    """Return how many times the steps of dense it takes to the loss that dense has after half of its steps."""
    half = len(dense) // 2
    loss = sum(each["loss"] for each in dense[half - 2 : half + 1]) / 3
    needed, of_dense = steps_to(seen, loss), steps_to(dense, loss)
    return "not reached" if needed is None or of_dense is None else f"{needed / of_dense:.2f}"


def main(
    output: Annotated[Path, typer.Option(help="Where the figures go, a line of JSON a run.")] = Path(
        "build/learning.jsonl"
    ),
    exchanges: Annotated[str, typer.Option(help="Beside dense.")] = "allgather_topk,union_topk,star_topk,var_topk",
    ratios: Annotated[str, typer.Option(help="Of the entries sent.")] = "0.1,0.03,0.01,0.003,0.001",
    values: Annotated[str, typer.Option(help="Value formats of all-gather top-k; the others send fp32.")] = "fp32",
    model: Annotated[
        str, typer.Option(help="cnn (1.66M parameters), small (417k), resnet, or transformer, with AdamW.")
    ] = "cnn",
    corrections: Annotated[
        str, typer.Option(help="Momentum: by SGD (plain), or before compression.")
    ] = "plain,corrected",
    steps: Annotated[int, typer.Option(min=10, help="How many steps a run has.")] = 300,
    lr: Annotated[
        float, typer.Option(help="The learning rate, which falls over the last quarter; 0.002 suits the transformer.")
    ] = 0.05,
    momentum: Annotated[float, typer.Option(help="Of SGD.")] = 0.9,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 2,
    data: Annotated[Path | None, typer.Option(help="A folder of idx files, or a text.")] = None,
) -> None:
    """Train with every plan, and write what was seen."""
    torch.set_num_threads(1)
    task = load_text(data) if model == "transformer" else load_images(data)
    sparse = [
        Plan(exchange=name, ratio=float(c), values=each)
        for name in exchanges.split(",")
        for c in ratios.split(",")
        for each in (values.split(",") if name == "allgather_topk" else ["fp32"])
    ]
    runs = [(Plan(exchange="dense"), "plain")]
    runs += [(plan, correction) for correction in corrections.split(",") for plan in sparse]
    output.parent.mkdir(exist_ok=True, parents=True)
    for seed in range(seeds):
        dense: list[dict[str, float]] = []
        for plan, correction in runs:
            start = time.perf_counter()
            is_corrected = correction == "corrected"
            options = {"model_name": model, "steps": steps, "lr": lr, "momentum": momentum, "seed": seed}
            seen = train(plan, task, is_corrected=is_corrected, **options)
            with output.open("a") as lines:
                said = {"exchange": plan.exchange, "ratio": plan.sent_ratio, "values": plan.values, **options}
                print(json.dumps({**said, "correction": correction, "seen": seen}), file=lines)
            gain = sum(each["gain"] for each in seen) / len(seen)
            dense = dense or seen
            print(
                f"{task.name} {plan.exchange} {plan.sent_ratio} {plan.values} {correction} seed {seed}: "
                f"{seen[-1]['accuracy']:.1%} after {steps} steps, gain {gain:.3f}, effort {effort_of(seen, dense)}, "
                f"{time.perf_counter() - start:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    typer.run(main)
