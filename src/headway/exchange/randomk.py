"""Random-k: indices that all ranks draw alike, values added on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.collectives import Collective
from headway.compress import Shape, random_indices, wanted_entries
from headway.exchange.base import Channel, Job, Traffic
from headway.exchange.indexed import average_at, payload_bytes
from headway.kernels import ValueFormat

_ALL_RANKS = -1


@dataclass(frozen=True)
class RandomK:
    """Average k entries at random; the others wait in the residual.

        I = f(seed, step, bucket);  average = 1/N sum_j G_j at I;  residual_j = G_j but 0 at I

    **Cost**: one addition and an all-reduce of k values; no indices on the wire. **Error**: fed back; the expected
    gain is only the ratio.
    """

    ratio: float
    algorithm: str
    values: ValueFormat = "fp32"

    def traffic(self, shape: Shape) -> Sequence[Traffic]:
        """Return one all-reduce of k values."""
        num_bytes = payload_bytes(wanted_entries(self.ratio, shape.numel), self.values)
        return [Traffic(Collective.ALL_REDUCE, self.algorithm, num_bytes)]

    def run(self, job: Job, channel: Channel) -> float:
        """Draw, add up."""
        numel, memory = job.memory.shape.numel, job.memory.whole
        indices = random_indices(numel, wanted_entries(self.ratio, numel), job.key(_ALL_RANKS))
        memory.accumulate(job.gradient)
        return average_at(
            job,
            indices.to(job.gradient.device),
            channel,
            algorithm=self.algorithm,
            values=self.values,
            has_nonfinite=memory.has_nonfinite,
        )
