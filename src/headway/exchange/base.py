"""What exchanges have in common: the job, and the interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from headway.collectives import Collective
from headway.compress import BucketMemory, Shape
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


@dataclass(frozen=True)
class Traffic:
    """A collective that an exchange is going to run: which, by which algorithm, and with how many bytes."""

    collective: Collective
    algorithm: str
    num_bytes: int


class Channel(Protocol):
    """What an exchange sends through. "auto" is the algorithm that takes least."""

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def num_ranks(self) -> int:
        """How many there are."""

    def all_reduce(self, tensor: Tensor, algorithm: str) -> Tensor:
        """Sum in place."""

    def all_gather(self, message: Tensor, algorithm: str) -> Tensor:
        """Return every rank's message, a row each."""

    def broadcast(self, tensor: Tensor, root: int, algorithm: str) -> Tensor:
        """Replace a tensor by the root's."""


class Exchange(Protocol):
    """How one bucket gets averaged: compressor and collective."""

    def traffic(self, shape: Shape) -> Sequence[Traffic]:
        """Return the collectives it takes, in order."""

    def run(self, job: Job, channel: Channel) -> float:
        """Replace the job's gradient by the average over ranks; return this rank's gain."""


def as_float32(gradient: Tensor) -> Tensor:
    """Return a float32 tensor to build the average in: the gradient's own memory where it is one."""
    return gradient if gradient.dtype == torch.float32 else gradient.to(torch.float32)
