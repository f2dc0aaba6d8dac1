"""Multi-sampling top-k (MSTopk): a threshold by binary search."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.compress.topk import TopK
from headway.kernels import Memory, Selection
from headway.kernels.arrays import index_dtype

NUM_SEARCHES = 25


@dataclass(frozen=True)
class MSTopK(TopK):
    """About the k largest entries, found by bisecting the threshold 25 times between 0 and the maximum magnitude.

    Takes all entries above the upper bound of the search, and the first of those between the bounds to fill up to k.

    **Cost**: 25 passes over G: a baseline, not a recommendation. Bytes as `TopK`. **Error**: a contraction; after 25
    halvings the entries between the bounds are practically equal.

    >>> MSTopK(0.01).num_bytes(1_000_000)
    50704

    Shi et al., Towards scalable distributed training of deep learning on public cloud clusters, 2021.
    """

    def _select(self, gradient: Tensor | None, memory: Memory, k: int, undo: Tensor | None) -> Selection:
        memory.accumulate(gradient, undo=undo)
        return memory.take(search_topk(memory.residual, k), value_format=self.values)

    def _largest(self, x: Tensor, k: int) -> Tensor:
        return search_topk(x, k)


def search_topk(x: Tensor, k: int) -> Tensor:
    """Return k ascending indices: those of the largest magnitudes, up to the resolution of the search.

    >>> search_topk(torch.tensor([1.0, -5.0, 2.0, 0.5]), 2)
    tensor([1, 2], dtype=torch.int32)
    """
    magnitudes = x.abs().nan_to_num_(nan=torch.inf)
    finite = magnitudes[magnitudes.isfinite()]
    low, high = 0.0, float(finite.max()) if finite.numel() else 0.0
    for _ in range(NUM_SEARCHES):
        middle = (low + high) / 2
        if int((magnitudes > middle).sum()) > k:
            low = middle
        else:
            high = middle
    above = torch.nonzero(magnitudes > high).flatten()[:k]
    between = torch.nonzero((magnitudes <= high) & (magnitudes >= low)).flatten()[: k - above.numel()]
    return torch.cat([above, between]).sort().values.to(index_dtype(x.numel()))
