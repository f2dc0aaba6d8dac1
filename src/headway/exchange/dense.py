"""Dense: every entry, by all-reduce."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headway.collectives import Collective
from headway.compress import Shape
from headway.exchange.base import Channel, Exchange, Job, Traffic
from headway.exchange.description import Description, GainRule
from headway.exchange.indexed import narrow


class Dense(Exchange):
    """Average all entries; with "native" and fp32, to the bit what DDP does without a hook.

        average = sum over ranks of g/N

    A residual that an earlier plan left is added and sent too; with fp16 values the rounding error stays in it.

    **Cost**: one all-reduce of M bytes, or M/2. **Error**: none, or fp16's rounding, fed back.
    """

    description = Description(
        name="dense",
        label="dense",
        summary="every entry, by all-reduce",
        collectives=(Collective.ALL_REDUCE,),
        value_formats=("fp32", "fp16"),
        uses_ratio=False,
        keeps_memory=False,
        gain_rule=GainRule.ALL,
    )

    def traffic(self, shape: Shape) -> Sequence[Traffic]:
        num_bytes = shape.numel * (4 if self.plan.values == "fp32" else 2)
        return [Traffic(Collective.ALL_REDUCE, self.plan.algorithm, num_bytes)]

    def run(self, job: Job, channel: Channel) -> float:
        is_plain = self.plan.values == "fp32" and not job.memory.is_used
        share = 1 / channel.num_ranks
        sent = job.gradient.mul_(share) if is_plain else self._take_all(job, share)
        job.gradient.copy_(channel.all_reduce(sent, self.plan.algorithm))
        return 1.0

    def _take_all(self, job: Job, share: float) -> Tensor:
        """Take G/N out of the memory, and leave there what rounding takes away."""
        memory = job.memory.whole
        memory.accumulate(job.gradient)
        sent = narrow(memory.residual * share, torch.float16 if self.plan.values == "fp16" else job.gradient.dtype)
        memory.residual.sub_(sent.to(torch.float32), alpha=1 / share)
        memory.drop_nonfinite()
        return sent
