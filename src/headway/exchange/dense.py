"""Dense: every entry, by all-reduce."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headway.collectives import Collective
from headway.compress import Shape
from headway.exchange.base import Channel, Exchange, Job, Traffic
from headway.exchange.description import Description, GainRule
from headway.exchange.narrowing import narrow


class Dense(Exchange):
    """Average all entries; with "native" and fp32, to the bit what DDP does without a hook.

        average = sum over ranks of g/N

    A residual that an earlier plan left is added and sent too; with fp16 values the rounding error stays in it.

    **Cost**: one all-reduce of M bytes, in the gradient's type or fp16. **Error**: none, or fp16's rounding, fed back.
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

    def traffic(self, shape: Shape, num_ranks: int) -> Sequence[Traffic]:
        entry_bytes = shape.entry_bytes if self.plan.values == "fp32" else 2
        return [Traffic(Collective.ALL_REDUCE, self.plan.algorithm, shape.numel * entry_bytes)]

    def run(self, job: Job, channel: Channel) -> float:
        if self.plan.values == "fp32" and not job.memory.is_used:
            sent = job.gradient.mul_(1 / channel.num_ranks)
            job.gradient.copy_(channel.all_reduce(sent, self.plan.algorithm))
            return 1.0
        total = channel.all_reduce(self._take_all(job, channel.num_ranks), self.plan.algorithm)
        if bool(total[:1].isnan().any()):
            return job.reject()
        job.gradient.copy_(total)
        return 1.0

    def _take_all(self, job: Job, num_ranks: int) -> Tensor:
        """Take G/N out of the memory, and leave there what rounding takes away; NaN throughout if G is not finite."""
        memory, share = job.memory.whole, 1 / num_ranks
        memory.accumulate(job.unadded, undo=job.undo.residual)
        dtype = torch.float16 if self.plan.values == "fp16" else job.gradient.dtype
        if memory.has_nonfinite:  # any entry of the sum then tells all ranks
            return torch.full_like(memory.residual, torch.nan, dtype=dtype)
        sent = narrow(memory.residual * share, dtype, num_ranks)
        memory.residual.sub_(sent.to(torch.float32), alpha=1 / share)
        return sent
