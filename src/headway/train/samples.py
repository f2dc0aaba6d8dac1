"""Samples to learn from, and the order in which ranks see them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Samples:
    """Inputs and targets: images and their classes, or characters and those that follow."""

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise ValueError(f"{len(self.inputs)} inputs have {len(self.targets)} targets")

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw samples at random, with replacement."""
        chosen = torch.randint(len(self), (size,), generator=generator)
        return self.inputs[chosen], self.targets[chosen]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A data set: samples to learn from, and samples to test with."""

    name: str
    train: Samples
    test: Samples
    num_classes: int = 10
    """Number of classes of images, or of different characters."""

    @property
    def is_text(self) -> bool:
        """Whether inputs are characters, and not images."""
        return not self.train.inputs.is_floating_point()


class BatchOrder:
    """The batches of one rank: in an epoch no sample comes twice, on any rank, and every epoch has another order.

    The batch of a step follows from the seed and the step alone.

    Args:
        num_samples: Number of samples in an epoch.
        batch_size: Samples per rank and step.
        rank: The rank whose batches these are.
        num_ranks: Number of ranks that share the samples.
        seed: Seed of the order.
    """

    def __init__(self, num_samples: int, batch_size: int, rank: int, num_ranks: int, seed: int) -> None:
        self.steps_per_epoch = num_samples // (batch_size * num_ranks)
        if self.steps_per_epoch == 0:
            raise ValueError(
                f"{num_samples} samples are too few for {num_ranks} workers with a batch of {batch_size} each: "
                "use fewer workers or a smaller batch"
            )
        self._num_samples = num_samples
        self._batch_size = batch_size
        self._rank = rank
        self._num_ranks = num_ranks
        self._seed = seed
        self._epoch = -1
        self._permutation = torch.empty(0, dtype=torch.int64)

    def batch(self, step: int) -> Tensor:
        """Return the indices of the samples of a step."""
        epoch, number = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            self._permutation = torch.randperm(self._num_samples, generator=generator)
            self._epoch = epoch
        first = (number * self._num_ranks + self._rank) * self._batch_size
        return self._permutation[first : first + self._batch_size]
