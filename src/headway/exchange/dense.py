"""Dense: all entries, added on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.collectives import Collective
from headway.compress import Shape
from headway.exchange.base import Channel, Job, Traffic
from headway.exchange.indexed import narrow
from headway.kernels import ValueFormat


@dataclass(frozen=True)
class Dense:
    """Average all entries; with "native" and fp32, to the bit what DDP does without a hook.

        average = sum over ranks of g/N

    A residual that an earlier plan left is added and sent too; with fp16 values the rounding error is kept in it.

    **Cost**: one all-reduce of M bytes, or M/2. **Error**: none, or fp16's rounding, fed back.
    """

    algorithm: str
    values: ValueFormat = "fp32"

    def traffic(self, shape: Shape) -> Sequence[Traffic]:
        """Return one all-reduce of everything."""
        return [Traffic(Collective.ALL_REDUCE, self.algorithm, shape.numel * (4 if self.values == "fp32" else 2))]

    def run(self, job: Job, channel: Channel) -> float:
        """Scale, add up."""
        plain = self.values == "fp32" and not job.memory.is_used
        share = 1 / channel.num_ranks
        sent = job.gradient.mul_(share) if plain else self._take_all(job, share)
        job.gradient.copy_(channel.all_reduce(sent, self.algorithm))
        return 1.0

    def _take_all(self, job: Job, share: float) -> Tensor:
        """Take G over N out of the memory, and leave there what rounding takes away."""
        memory = job.memory.whole
        memory.accumulate(job.gradient)
        sent = narrow(memory.residual * share, torch.float16 if self.values == "fp16" else job.gradient.dtype)
        memory.residual.sub_(sent.to(torch.float32), alpha=1 / share)
        memory.drop_nonfinite()
        return sent
