"""AR-Topk: one rank's indices, every rank's values, by all-reduce."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headway.collectives import AUTO, NATIVE, Collective
from headway.compress import Shape, wanted_entries
from headway.errors import MessageError
from headway.exchange.base import Channel, Exchange, Job, Traffic
from headway.exchange.description import Description
from headway.exchange.indexed import average_at, payload_bytes
from headway.kernels import decode_indices, encode_indices, index_bytes

_MEASURED_FACTOR = 0.5
"""Another rank's indices send about half of what the rank's own top-k would (benchmarks/learning.py)."""


class StarTopK(Exchange):
    """STAR: the ranks take turns. w = step mod N broadcasts the indices of its top-k; all values there are added up.

        G_j = g_j + residual_j;  I = top-k of G_w;  average = 1/N sum_j G_j at I;  residual_j = G_j but 0 at I

    **Cost**: a broadcast of k indices (1.1 bytes each at 1%) and an all-reduce of k values; neither grows with N.
    Only w runs the selection, the others one addition. **Error**: fed back; a rank's own top-k that w did not
    choose stays in its residual.

    Paper: arXiv 2312.02493.
    """

    description = Description(
        name="star_topk",
        label="STAR top-k",
        summary="AR-Topk: ranks take turns to choose the indices, values by all-reduce",
        collectives=(Collective.BROADCAST, Collective.ALL_REDUCE),
        value_formats=("fp32", "fp16"),
        takes_turns=True,
        gain_factor=_MEASURED_FACTOR,
        hue=0.07,
    )

    def traffic(self, shape: Shape, num_ranks: int) -> Sequence[Traffic]:
        k = wanted_entries(self.plan.ratio, shape.numel)
        return [
            Traffic(Collective.BROADCAST, self.plan.broadcast, index_bytes(shape.numel, k)),
            Traffic(Collective.ALL_REDUCE, self.plan.algorithm, payload_bytes(k, self.plan.values)),
        ]

    def run(self, job: Job, channel: Channel) -> float:
        root = job.step % channel.num_ranks
        memory, k = job.memory.whole, wanted_entries(self.plan.ratio, job.memory.shape.numel)
        indices = None
        if channel.rank == root:
            selection = memory.peek(job.unadded, k, undo=job.undo.residual)
            has_nonfinite = not bool(selection.values.isfinite().all())
            indices = selection.indices
        else:
            memory.accumulate(job.unadded, undo=job.undo.residual)
            has_nonfinite = memory.has_nonfinite
        return self._average(job, indices, root, channel, has_nonfinite)

    def _average(self, job: Job, indices: Tensor | None, root: int, channel: Channel, has_nonfinite: bool) -> float:
        indices = self._share_indices(job, indices, root, channel)
        return average_at(job, indices, channel, self.plan, has_nonfinite=has_nonfinite)

    def _share_indices(self, job: Job, indices: Tensor | None, root: int, channel: Channel) -> Tensor:
        """Return the root's indices, which the root gives."""
        numel = job.memory.shape.numel
        k = wanted_entries(self.plan.ratio, numel)
        message = torch.empty(index_bytes(numel, k), dtype=torch.uint8, device=job.gradient.device)
        if indices is not None:
            encode_indices(indices, numel, out=message)
        channel.broadcast(message, root, self.plan.broadcast)
        if indices is not None:
            return indices
        try:
            return decode_indices(message, numel, k)
        except MessageError as error:
            raise error.from_peer(root) from error


class VarTopK(StarTopK):
    """VAR: the rank whose top-k has the most energy broadcasts its indices.

        w = argmax_j |top-k of G_j|²  (the lowest rank on a tie)

    **Cost**: as STAR, one selection on every rank, and an all-gather of one number each. **Error**: as STAR.

    Paper: arXiv 2312.02493.
    """

    description = Description(
        name="var_topk",
        label="VAR top-k",
        summary="AR-Topk: the rank whose top-k has the most energy chooses the indices, values by all-reduce",
        collectives=(Collective.ALL_GATHER, Collective.BROADCAST, Collective.ALL_REDUCE),
        value_formats=("fp32", "fp16"),
        takes_turns=True,
        gain_factor=_MEASURED_FACTOR,
        variant_of="star_topk",
        hue=0.0,
    )

    def traffic(self, shape: Shape, num_ranks: int) -> Sequence[Traffic]:
        return [Traffic(Collective.ALL_GATHER, self._gather, 8), *super().traffic(shape, num_ranks)]

    def run(self, job: Job, channel: Channel) -> float:
        memory, k = job.memory.whole, wanted_entries(self.plan.ratio, job.memory.shape.numel)
        selection = memory.peek(job.unadded, k, undo=job.undo.residual)
        own = selection.values.double().square().sum().reshape(1)
        energies = channel.all_gather(own, self._gather).flatten()
        root = int(energies.nan_to_num(nan=torch.inf).argmax())
        indices = selection.indices if channel.rank == root else None
        return self._average(job, indices, root, channel, has_nonfinite=not bool(own.isfinite()))

    @property
    def _gather(self) -> str:
        """The algorithm for one number a rank: the fastest, unless everything is to be native."""
        return self.plan.algorithm if self.plan.algorithm in (AUTO, NATIVE) else "one_shot"
