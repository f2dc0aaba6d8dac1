"""Evaluating a model on the test set."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headway.train.samples import Samples

_CHUNK = 256


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Mean loss and accuracy on some samples."""

    loss: float
    accuracy: float
    num_samples: int


def loss_of(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy over images, or over all characters.

    >>> float(loss_of(torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64))) == float(torch.tensor(4.0).log())
    True
    """
    return nn.functional.cross_entropy(scores.flatten(0, -2), targets.flatten())


@torch.no_grad()
def evaluate(
    model: nn.Module, samples: Samples, limit: int = 0, *, group: dist.ProcessGroup | None = None
) -> Evaluation:
    """Evaluate a model on this rank, or on all ranks of a group that have the same model.

    **Cost**: with a group, one all-reduce of three numbers.

    Args:
        model: The bare model.
        samples: The test set.
        limit: Number of samples to use, from the first; 0 for all.
        group: Ranks that divide the samples; all of them call this. None to evaluate on this rank alone.
    """
    rank, num_ranks = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
    number = min(limit or len(samples), len(samples))
    sums = torch.zeros(3, dtype=torch.float64)
    was_training = model.training
    model.eval()
    for chosen in torch.split(torch.arange(rank, number, num_ranks), _CHUNK):
        if len(chosen):
            scores, targets = model(samples.inputs[chosen]), samples.targets[chosen]
            right = (scores.argmax(-1) == targets).sum().item()
            sums += torch.tensor([loss_of(scores, targets).item() * targets.numel(), right, targets.numel()])
    model.train(was_training)
    if group is not None:
        dist.all_reduce(sums, group=group)
    loss, right, count = sums.tolist()
    return Evaluation(loss=loss / max(count, 1), accuracy=right / max(count, 1), num_samples=number)
