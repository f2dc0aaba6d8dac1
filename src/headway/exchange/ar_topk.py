"""AR-Topk: one rank's indices, everybody's values, added on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.collectives import Collective
from headway.compress import Shape, wanted_entries
from headway.errors import MessageError
from headway.exchange.base import Channel, Job, Traffic
from headway.exchange.indexed import average_at, payload_bytes
from headway.kernels import ValueFormat, decode_indices, encode_indices, index_bytes


@dataclass(frozen=True)
class ArTopK:
    """STAR: the ranks take turns. w = step mod N broadcasts the indices of its top-k; all values there are added up.

        G_j = g_j + residual_j;  I = top-k of G_w;  average = 1/N sum_j G_j at I;  residual_j = G_j but 0 at I

    **Cost**: a broadcast of k indices (1.4 bytes each at 1%) and an all-reduce of k values; neither grows with N.
    Only w runs the selection, the others one addition. **Error**: fed back; a rank's own top-k that w did not
    choose stays in its residual.

    Paper: arXiv 2312.02493.
    """

    ratio: float
    algorithm: str
    broadcast: str
    values: ValueFormat = "fp32"

    def traffic(self, shape: Shape) -> Sequence[Traffic]:
        """Return a broadcast of indices and an all-reduce of values."""
        k = wanted_entries(self.ratio, shape.numel)
        return [
            Traffic(Collective.BROADCAST, self.broadcast, index_bytes(shape.numel, k)),
            Traffic(Collective.ALL_REDUCE, self.algorithm, payload_bytes(k, self.values)),
        ]

    def run(self, job: Job, channel: Channel) -> float:
        """Select on one rank, tell the others, add up."""
        root = job.step % channel.num_ranks
        memory, k = job.memory.whole, wanted_entries(self.ratio, job.memory.shape.numel)
        indices = None
        if channel.rank == root:
            selection = memory.select(job.gradient, k)
            has_nonfinite = not bool(selection.values.isfinite().all())
            indices = selection.indices
            memory.put_back(selection)
        else:
            memory.accumulate(job.gradient)
            has_nonfinite = memory.has_nonfinite
        return self._average(job, indices, root, channel, has_nonfinite)

    def _average(self, job: Job, indices: Tensor | None, root: int, channel: Channel, has_nonfinite: bool) -> float:
        indices = self._share(job, indices, root, channel)
        return average_at(
            job, indices, channel, algorithm=self.algorithm, values=self.values, has_nonfinite=has_nonfinite
        )

    def _share(self, job: Job, indices: Tensor | None, root: int, channel: Channel) -> Tensor:
        """Return the root's indices."""
        numel = job.memory.shape.numel
        k = wanted_entries(self.ratio, numel)
        message = torch.empty(index_bytes(numel, k), dtype=torch.uint8, device=job.gradient.device)
        if indices is not None:
            encode_indices(indices, numel, out=message)
        channel.broadcast(message, root, self.broadcast)
        if indices is not None:
            return indices
        try:
            return decode_indices(message, numel, k)
        except MessageError as error:
            raise error.from_peer(root) from error


@dataclass(frozen=True)
class VarTopK(ArTopK):
    """VAR: the rank whose top-k has most energy broadcasts its indices.

        w = argmax_j |top-k of G_j|²  (the lowest rank on a tie)

    **Cost**: as STAR, one selection on every rank, and an all-gather of one number each. **Error**: as STAR.

    Paper: arXiv 2312.02493.
    """

    def traffic(self, shape: Shape) -> Sequence[Traffic]:
        """Return what STAR takes, after an all-gather of one number a rank."""
        return [Traffic(Collective.ALL_GATHER, self._gather, 8), *super().traffic(shape)]

    def run(self, job: Job, channel: Channel) -> float:
        """Select on every rank, find the one that has most, and go on as STAR does."""
        memory, k = job.memory.whole, wanted_entries(self.ratio, job.memory.shape.numel)
        selection = memory.select(job.gradient, k)
        own = selection.values.double().square().sum().reshape(1)
        energies = channel.all_gather(own, self._gather).flatten()
        root = int(energies.nan_to_num(nan=torch.inf).argmax())
        indices = selection.indices if channel.rank == root else None
        memory.put_back(selection)
        return self._average(job, indices, root, channel, has_nonfinite=not bool(own.isfinite()))

    @property
    def _gather(self) -> str:
        """The numbers are few: whatever is fastest, unless everything is to be native."""
        return self.algorithm if self.algorithm in ("auto", "native") else "one_shot"
