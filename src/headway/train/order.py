"""Which samples a rank sees at a step: every epoch all of them, in another order, no sample at two ranks."""

from __future__ import annotations

import torch
from torch import Tensor


class Order:
    """The batches of one rank. What comes at a step follows from the seed and the step alone.

    Args:
        num_samples: There are.
        batch_size: Of a rank.
        rank: Whose batches these are.
        num_ranks: Between which every batch is divided.
        seed: Of the order.
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
        """Return the numbers of the samples of a step."""
        epoch, number = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            self._permutation = torch.randperm(self._num_samples, generator=generator)
            self._epoch = epoch
        first = (number * self._num_ranks + self._rank) * self._batch_size
        return self._permutation[first : first + self._batch_size]
