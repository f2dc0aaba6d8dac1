"""Do more workers help, and does compression cost? What theory says of gossip, on problems small enough to see it.

All workers are in one process, each with different data. Two figures: the norm of the gradient against the step for 4
and 16 workers, each with the learning rate that is best for it (target: 4 times the workers reach the same norm in at
most 0.4 times the steps); and how far compressed models are from those of a run without compression.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
import typer
from torch import Tensor

from headway.compress import StochasticQuantizer
from headway.gossip import InProcessGossip

NUMEL = 50
NUM_PARTS = 16
WINDOW = 20
RATES = (0.02, 0.04, 0.08, 0.16, 0.32)
Gradients = Callable[[Tensor], Tensor]
"""From models, a row each, to the gradients of the workers' own functions, a row each."""
Norm = Callable[[Tensor], float]
"""The norm of the gradient of their mean, at a model."""


def quadratic(num_workers: int) -> tuple[Gradients, Norm]:
    """Return f_i(x) = |x - b_i|² / 2."""
    targets = 3 * torch.randn(num_workers, NUMEL, generator=torch.Generator().manual_seed(0))
    return lambda models: models - targets, lambda x: float((x - targets.mean(dim=0)).norm())


def logistic(num_workers: int, *, batch: int | None = None, seed: int = 0) -> tuple[Gradients, Norm]:
    """Return logistic regression on 6,400 samples, split between workers; a batch is drawn at random."""
    source = torch.Generator().manual_seed(0)
    truth = torch.randn(NUMEL, generator=source)
    inputs = torch.randn(NUM_PARTS, 400, NUMEL, generator=source)
    inputs = inputs + 0.5 * torch.randn(NUM_PARTS, 1, NUMEL, generator=source)
    labels = (torch.rand(NUM_PARTS, 400, generator=source) < torch.sigmoid(0.7 * inputs @ truth)).float()
    inputs, labels = inputs.view(num_workers, -1, NUMEL), labels.view(num_workers, -1)
    draws = torch.Generator().manual_seed(1 + seed)

    def gradients(models: Tensor) -> Tensor:
        x, y = inputs, labels
        if batch is not None:
            chosen = torch.randint(x.shape[1], (num_workers, batch), generator=draws)
            rows = torch.arange(num_workers)[:, None]
            x, y = x[rows, chosen], y[rows, chosen]
        errors = torch.sigmoid((x * models[:, None]).sum(dim=2)) - y
        return (errors[:, :, None] * x).mean(dim=1)

    def norm(x: Tensor) -> float:
        errors = torch.sigmoid(inputs @ x) - labels
        return float((errors[:, :, None] * inputs).mean(dim=(0, 1)).norm())

    return gradients, norm


def descend(
    workers: InProcessGossip, gradients: Gradients, norm: Norm, rate: float, steps: int
) -> npt.NDArray[np.float64]:
    """Return the norm of the gradient at the mean model after each step, as a running mean."""
    norms = []
    for _ in range(steps):
        workers.step(-rate * gradients(workers.models))
        norms.append(norm(workers.models.mean(dim=0)))
    return np.convolve(norms, np.ones(WINDOW) / WINDOW, "valid")


def steps_to(norms: npt.NDArray[np.float64], limit: float) -> float:
    """Return the first step that reaches a norm; infinity if none does."""
    return float(np.argmax(norms < limit)) if norms.min() < limit else np.inf


def speed_up(limit: float, steps: int, seeds: int) -> dict[str, Any]:
    """Return, for 4 and 16 workers, the best rate, the steps it needs, and the path."""
    found: dict[str, Any] = {}
    for num_workers in (4, 16):
        for rate in RATES:
            paths = []
            for seed in range(seeds):
                workers = InProcessGossip(torch.zeros(NUMEL), num_workers, "dcd", "ring", StochasticQuantizer(bits=8))
                paths.append(descend(workers, *logistic(num_workers, batch=1, seed=seed), rate, steps))
            needed = float(np.mean([steps_to(path, limit) for path in paths]))
            best = found.get(str(num_workers))
            if best is None or needed < best["steps"]:
                found[str(num_workers)] = {"rate": rate, "steps": needed, "path": np.mean(paths, axis=0).tolist()}
    return found


def floors(steps: int) -> dict[str, list[float]]:
    """Return how far models are from those without compression, after each step on the quadratic."""
    gradients, _ = quadratic(8)
    compressors = {
        "naive": StochasticQuantizer(bits=8),
        "dcd": StochasticQuantizer(bits=8),
        "ecd": StochasticQuantizer(bits=8, step=0.05),
    }
    return distances(gradients, compressors, 0.2, steps)


def distances(
    gradients: Gradients, compressors: dict[str, StochasticQuantizer], rate: float, steps: int
) -> dict[str, list[float]]:
    """Return |X - X of dpsgd| after each step, for every algorithm with its compressor; 8 workers on a ring."""
    exact = InProcessGossip(torch.zeros(NUMEL), 8, "dpsgd", "ring")
    runs = {name: InProcessGossip(torch.zeros(NUMEL), 8, name, "ring", given) for name, given in compressors.items()}
    off: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(steps):
        exact.step(-rate * gradients(exact.models))
        for name, workers in runs.items():
            workers.step(-rate * gradients(workers.models))
            off[name].append(float((workers.models - exact.models).norm()))
    return off


def draw(found: dict[str, Any], limit: float, path: Path) -> None:
    """Write the picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for num_workers, best in found["speed_up"].items():
        left.plot(best["path"], label=f"{num_workers} workers, learning rate {best['rate']}")
    left.axhline(limit, color="0.6")
    left.set(xscale="log", yscale="log", xlabel="step", ylabel="norm of the gradient", title="dcd 8 bits, ring")
    left.legend()
    for name, off in found["floors"].items():
        right.plot(np.arange(1, len(off) + 1), off, label=name)
    right.set(xscale="log", yscale="log", xlabel="step", ylabel="distance", title="from dpsgd, 8 workers, ring")
    right.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def main(
    output: Annotated[Path, typer.Option(help="Output file of the figures.")] = Path("build/gossip_rate.json"),
    picture: Annotated[Path, typer.Option(help="Output file of the picture.")] = Path("build/gossip_rate.png"),
    limit: Annotated[float, typer.Option(help="The norm to reach.")] = 0.05,
    steps: Annotated[int, typer.Option(min=100, help="Steps of a run.")] = 2500,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 3,
) -> None:
    """Run, print, and write figures and picture."""
    found = {"speed_up": speed_up(limit, steps, seeds), "floors": floors(steps)}
    few, many = found["speed_up"]["4"], found["speed_up"]["16"]
    for num_workers, best in found["speed_up"].items():
        typer.echo(f"{num_workers} workers: {best['steps']:.0f} steps to {limit}, learning rate {best['rate']}")
    typer.echo(f"16 workers need {many['steps'] / few['steps']:.2f} times the steps of 4 (limit 0.4)")
    for name, off in found["floors"].items():
        windows = ", ".join(
            f"{np.mean(off[start : 2 * start]):.2g} from step {start}" for start in (75, 300, steps // 2)
        )
        typer.echo(f"{name}: {windows}")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(found))
    draw(found, limit, picture)


if __name__ == "__main__":
    typer.run(main)
