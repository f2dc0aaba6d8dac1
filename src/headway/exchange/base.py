"""What exchanges have in common: the job, the channel, and the interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from headway.collectives import Collective
from headway.compress import BucketMemory, Shape
from headway.exchange.description import EXCHANGES, Description
from headway.exchange.plan import Plan
from headway.kernels import noise_key

ALL_RANKS = -1


@dataclass(frozen=True, kw_only=True)
class Job:
    """A bucket to average at a step."""

    step: int
    bucket: int
    gradient: Tensor
    """Flat; replaced by the average."""
    memory: BucketMemory
    seed: int = 0

    def key(self, rank: int) -> int:
        """Return the key of this bucket's random numbers on a rank, or with `ALL_RANKS` the key common to all."""
        return noise_key(self.seed, self.step, rank, self.bucket)


@dataclass(frozen=True)
class Traffic:
    """A collective that an exchange will run: its algorithm, "auto" for the cheapest, and its payload."""

    collective: Collective
    algorithm: str
    num_bytes: int


class Channel(Protocol):
    """What an exchange sends through. The algorithm "auto" is the cheapest one."""

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""

    def all_reduce(self, tensor: Tensor, algorithm: str) -> Tensor:
        """Sum in place."""

    def all_gather(self, message: Tensor, algorithm: str) -> Tensor:
        """Return the messages of all ranks, a row each."""

    def broadcast(self, tensor: Tensor, root: int, algorithm: str) -> Tensor:
        """Replace a tensor by that of the root."""


class Exchange(ABC):
    """How one bucket gets averaged: compressor and collective. Made for one plan.

    A subclass has a `Description` and is made known by `headway.exchange.register`; docs/extending.md has an example.

    Args:
        plan: The plan in force, which names this exchange.
    """

    description: ClassVar[Description]

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @abstractmethod
    def traffic(self, shape: Shape) -> Sequence[Traffic]:
        """Return the collectives that `run` will call for a bucket of this shape, in order."""

    @abstractmethod
    def run(self, job: Job, channel: Channel) -> float:
        """Replace the job's gradient by the average over ranks, the same bits on all; return this rank's gain."""


def exchange_of(plan: Plan) -> Exchange:
    """Return the exchange that a plan asks for."""
    return EXCHANGES[plan.exchange](plan)
