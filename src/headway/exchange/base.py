"""What exchanges have in common: the job, the channel, and the interface."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

from torch import Tensor

from headway.collectives import Collective
from headway.compress import BucketMemory, Shape, Undo
from headway.exchange.description import EXCHANGES, Description
from headway.exchange.narrowing import fit
from headway.exchange.plan import Plan
from headway.kernels import noise_key

ALL_RANKS = -1


@dataclass(frozen=True, kw_only=True)
class Job:
    """A bucket to average at a step.

    An exchange is atomic: if the gradient of any rank has Inf or NaN, all ranks `reject` it.
    """

    step: int
    bucket: int
    gradient: Tensor
    """Flat; replaced by the average. From the moment it is added to the memory until then, its buffer may hold the
    residual from before: see `undo`."""
    memory: BucketMemory
    seed: int = 0

    @cached_property
    def undo(self) -> Undo:
        """Puts the memory back; the pass that adds the gradient takes its ``residual`` as ``undo=``."""
        return Undo(self.memory, self.gradient)

    @property
    def unadded(self) -> Tensor | None:
        """The gradient, to be added to the memory; None if that has been done."""
        return None if self.undo.is_filled else self.gradient

    @property
    def is_rejected(self) -> bool:
        """Whether the exchange has been undone."""
        return "undo" in vars(self) and self.undo.has_run

    def reject(self) -> float:
        """Undo the exchange, because the gradient of some rank is not finite; return the gain, which is not known.

        The memory is what it was, to the bit: what this rank sent is lost with the step. All of the average is NaN, so
        that no part of it can be applied and then be sent once more.
        """
        self.undo.run()
        self.gradient.fill_(math.nan)
        return math.nan

    def write(self, average: Tensor) -> None:
        """Replace the gradient by a float32 average; what the type of the gradient cannot hold stays in the memory."""
        fitting, excess = fit(average, self.gradient.dtype)
        if excess is not None:
            self.memory.residual.add_(excess)
        self.gradient.copy_(fitting)

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
    def traffic(self, shape: Shape, num_ranks: int) -> Sequence[Traffic]:
        """Return the collectives that `run` will call for a bucket of this shape with N ranks, in order."""

    @abstractmethod
    def run(self, job: Job, channel: Channel) -> float:
        """Replace the job's gradient by the average over ranks, the same bits on all; return this rank's gain.

        If any rank's gradient is not finite, as the average shows, all ranks call `Job.reject` instead.
        """


def exchange_of(plan: Plan) -> Exchange:
    """Return the exchange that a plan asks for."""
    return EXCHANGES[plan.exchange](plan)
