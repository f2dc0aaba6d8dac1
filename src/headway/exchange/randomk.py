"""Random-k: indices that all ranks draw alike, values by all-reduce."""

from __future__ import annotations

from collections.abc import Sequence

from headway.collectives import Collective
from headway.compress import Shape, random_indices, wanted_entries
from headway.exchange.base import ALL_RANKS, Channel, Exchange, Job, Traffic
from headway.exchange.description import Description, GainRule
from headway.exchange.indexed import average_at, payload_bytes


class RandomKExchange(Exchange):
    """Average k entries at random; the others wait in the residual.

        I = f(seed, step, bucket);  average = 1/N sum_j G_j at I;  residual_j = G_j but 0 at I

    **Cost**: one addition and an all-reduce of k values; no indices on the wire. **Error**: fed back; the expected
    gain is only the ratio.
    """

    description = Description(
        name="randomk",
        label="random-k",
        summary="entries at random, the same on all ranks, by all-reduce",
        collectives=(Collective.ALL_REDUCE,),
        value_formats=("fp32", "fp16"),
        gain_rule=GainRule.RATIO,
        is_candidate=False,  # sends no indices, so it is fast, but learns least, and may diverge
        hue=0.8,
    )

    def traffic(self, shape: Shape, num_ranks: int) -> Sequence[Traffic]:
        num_bytes = payload_bytes(wanted_entries(self.plan.ratio, shape.numel), self.plan.values)
        return [Traffic(Collective.ALL_REDUCE, self.plan.algorithm, num_bytes)]

    def run(self, job: Job, channel: Channel) -> float:
        numel, memory = job.memory.shape.numel, job.memory.whole
        indices = random_indices(numel, wanted_entries(self.plan.ratio, numel), job.key(ALL_RANKS))
        memory.accumulate(job.unadded, undo=job.undo.residual)
        return average_at(job, indices.to(job.gradient.device), channel, self.plan, has_nonfinite=memory.has_nonfinite)
