"""What exchanges have in common: the job, and the interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from headway.compress import BucketMemory, Shape
from headway.exchange.channel import Channel, Traffic
from headway.kernels import noise_key


@dataclass(frozen=True, kw_only=True)
class Job:
    """A bucket to average, at a step."""

    step: int
    bucket: int
    gradient: Tensor
    """Flat; the average replaces it."""
    memory: BucketMemory
    seed: int = 0

    def key(self, rank: int) -> int:
        """Return the key of this bucket's random numbers: of a rank, or of all with rank -1."""
        return noise_key(self.seed, self.step, rank, self.bucket)


class Exchange(Protocol):
    """How one bucket gets averaged: compressor and collective."""

    def traffic(self, shape: Shape, num_ranks: int) -> Sequence[Traffic]:
        """Return the collectives it takes, in order."""

    def run(self, job: Job, channel: Channel) -> float:
        """Replace the job's gradient by the average over ranks; return this rank's gain."""


def as_float32(gradient: Tensor) -> Tensor:
    """Return a float32 tensor to build the average in: the gradient's own memory where it is one."""
    return gradient if gradient.dtype == torch.float32 else gradient.to(torch.float32)
