"""Union top-k: every rank names some indices, every rank sends its values at all of them, by all-reduce."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headway.collectives import AUTO, NATIVE, Collective
from headway.compress import Shape, random_indices, wanted_entries
from headway.errors import MessageError
from headway.exchange.base import ALL_RANKS, Channel, Exchange, Job, Traffic
from headway.exchange.description import Description
from headway.exchange.indexed import average_at, payload_bytes
from headway.kernels import decode_indices, encode_indices, index_bytes

_MEASURED_FACTOR = 0.6
"""What the common indices send of a rank's G, over what its own top-k would (benchmarks/learning.py)."""
_DENSE_SHARE = 0.25
"""Above this share of all entries, indices are drawn from those that are left instead of from all."""


class UnionTopK(Exchange):
    """AR-Topk where every rank names indices: what a rank holds most of is sent in every step, not when its turn comes.

        G_j = g_j + residual_j;  I = union of the top k/N of every G_j, filled up to k;
        average = 1/N sum_j G_j at I;  residual_j = G_j but 0 at I

    Ranks often name the same entries. The room that is left is filled with entries drawn at random, the same on all
    ranks, so that messages have a known size; so do entries that no rank would ever name leave at last.

    **Cost**: an all-gather of k/N indices a rank and an all-reduce of k values; bytes a rank do not grow with N. One
    selection on every rank. **Error**: fed back; a rank's own top-k that is not in I stays in its residual.
    """

    description = Description(
        name="union_topk",
        label="union top-k",
        summary="every rank names its top k/N indices, by all-gather; values at all of them by all-reduce",
        collectives=(Collective.ALL_GATHER, Collective.ALL_REDUCE),
        value_formats=("fp32", "fp16"),
        gain_factor=_MEASURED_FACTOR,
        hue=0.14,
    )

    def traffic(self, shape: Shape, num_ranks: int) -> Sequence[Traffic]:
        num_named, num_sent = self._sizes(shape.numel, num_ranks)
        return [
            Traffic(Collective.ALL_GATHER, self._gather, index_bytes(shape.numel, num_named)),
            Traffic(Collective.ALL_REDUCE, self.plan.algorithm, payload_bytes(num_sent, self.plan.values)),
        ]

    def run(self, job: Job, channel: Channel) -> float:
        numel, memory = job.memory.shape.numel, job.memory.whole
        num_named, num_sent = self._sizes(numel, channel.num_ranks)
        selection = memory.peek(job.unadded, num_named, undo=job.undo.residual)
        has_nonfinite = not bool(selection.values.isfinite().all())
        message = torch.empty(index_bytes(numel, num_named), dtype=torch.uint8, device=job.gradient.device)
        encode_indices(selection.indices, numel, out=message)
        named = _decoded(channel.all_gather(message, self._gather), numel, num_named)
        indices = fill_up(torch.unique(named), numel, num_sent, job.key(ALL_RANKS))
        return average_at(job, indices, channel, self.plan, has_nonfinite=has_nonfinite)

    def _sizes(self, numel: int, num_ranks: int) -> tuple[int, int]:
        """Return how many indices a rank names, at least one, and how many entries are sent."""
        k = wanted_entries(self.plan.ratio, numel)
        return max(1, k // num_ranks), min(max(k, num_ranks), numel)

    @property
    def _gather(self) -> str:
        """The algorithm for the indices, which are few: the fastest, unless everything is to be native."""
        return NATIVE if self.plan.algorithm == NATIVE else AUTO


def _decoded(messages: Tensor, numel: int, num_named: int) -> Tensor:
    """Return the indices that all ranks have named, one rank after the other."""
    named = []
    for rank, message in enumerate(messages):
        try:
            named.append(decode_indices(message, numel, num_named))
        except MessageError as error:
            raise error.from_peer(rank) from error
    return torch.cat(named)


def fill_up(indices: Tensor, numel: int, k: int, key: int) -> Tensor:
    """Return k ascending distinct indices: those given, and others drawn at random, the same for the same key.

    >>> fill_up(torch.tensor([3, 5]), 100, 4, key=1)
    tensor([ 3,  5, 46, 53])
    """
    while indices.numel() < k:
        room = k - indices.numel()
        if k > _DENSE_SHARE * numel:
            is_left = torch.ones(numel, dtype=torch.bool, device=indices.device)
            is_left[indices.long()] = False
            left = is_left.nonzero().flatten().to(indices.dtype)
            drawn = left[random_indices(left.numel(), room, key).long().to(indices.device)]
        else:
            drawn = random_indices(numel, room, key).to(indices.dtype)
        indices = torch.unique(torch.cat([indices, drawn.to(indices.device)]))
        key += 1
    return indices
