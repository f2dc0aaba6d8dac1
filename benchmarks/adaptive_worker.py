"""What the hosts do in ``benchmarks/adaptive.py``: train the same model on the same data with every contender in turn.

Rank 0 prints a line of JSON a contender: seconds of every step, what was in force then, and the accuracy on the way.
Accuracy is measured from copies of the parameters when training is over, so that it takes no time from it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import headway
from contenders import LEARNING_RATE, Contender
from headway.lab import Control
from headway.train import Samples, Task, cnn, load_images

DECAYING = 0.25
"""The learning rate falls to zero over this last part of the run."""
EVERY = 8
"""Steps between copies of the parameters."""
NUM_TESTED, CHUNK = 2000, 500
SETTLING_S = 0.5
"""For the lab to go back to the first phase."""


def run(contender: dict[str, Any], task: Task, control: Control, num_steps: int, first: int) -> dict[str, Any]:
    """Train; return what happened, at rank 0."""
    control.step(first)
    time.sleep(SETTLING_S)
    dist.barrier()
    began = time.monotonic()
    taking_part = Contender(contender)
    handle = taking_part.handle
    attach_s = time.monotonic() - began
    generator = torch.Generator().manual_seed(1000 * contender["seed"] + dist.get_rank())
    copies: list[Tensor] = []
    steps: list[dict[str, Any]] = []
    dist.barrier()
    for step in range(num_steps):
        if contender.get("phases", True):
            control.step(first + step)
        start = time.monotonic()
        for group in taking_part.optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (num_steps - step) / (DECAYING * num_steps))
        loss = taking_part.step(task.train, generator)
        steps.append({"seconds": time.monotonic() - start, "loss": loss, **in_force(handle)})
        if (step + 1) % EVERY == 0:
            copies.append(taking_part.model())
    dist.barrier()
    decisions = [] if handle is None else [decision.words for decision in handle.history]
    taking_part.close()
    accuracies = [accuracy(copy, task.test, NUM_TESTED) for copy in copies]
    final = accuracy(copies[-1], task.test, len(task.test))
    return {
        **contender,
        "attach_s": attach_s,
        "steps": steps,
        "accuracies": accuracies,
        "final": final,
        "decisions": decisions,
    }


def in_force(handle: headway.HookState | headway.local.LocalOptimizer | None) -> dict[str, Any]:
    """Return what the step was averaged by."""
    if handle is None or not handle.records:
        return {}
    record, network = handle.records[-1], handle.network
    said = {"exchange": record.exchange, "algorithm": record.algorithm, "ratio": record.ratio, "gain": record.gain}
    said |= {"local_steps": handle.plan.local_steps, "delay": handle.plan.delay}
    if network is not None:
        link = network.estimate.link
        said |= {"latency_s": link.latency_s, "bandwidth_bps": link.bandwidth_bps}
    return said


@torch.no_grad()
def accuracy(parameters: Tensor, test: Samples, num_tested: int) -> float:
    """Return the share of test images that a copy gets right; every rank looks at a part of them."""
    model = cnn()
    nn.utils.vector_to_parameters(parameters, model.parameters())
    mine = torch.arange(dist.get_rank(), min(num_tested, len(test)), dist.get_world_size())
    right = sum(int((model(test.inputs[part]).argmax(1) == test.targets[part]).sum()) for part in mine.split(CHUNK))
    total = torch.tensor([right, len(mine)], dtype=torch.float64)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def main() -> None:
    """Take every contender in turn; phases start anew with each."""
    contenders, num_steps, folder = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3] or None
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    task, control = load_images(folder), Control()
    for number, contender in enumerate(contenders):
        found = run(contender, task, control, num_steps, number * num_steps)
        if dist.get_rank() == 0:
            print(json.dumps({**found, "task": task.name}), flush=True)
    dist.barrier()
    os._exit(0)  # torch may abort while it takes down its groups


if __name__ == "__main__":
    main()
