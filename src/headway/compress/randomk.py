"""Random-k with a shared seed: all ranks draw the same indices, and none are sent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headway.compress.base import Compressor, check_ratio, wanted_entries
from headway.kernels import scatter_add
from headway.kernels.arrays import index_dtype


def random_indices(numel: int, k: int, key: int) -> Tensor:
    """Return k ascending distinct indices, one from each of k strata of nearly equal size, shifted by a random offset.

    Every entry has the same probability k/numel. Strata instead of a permutation: k random numbers are drawn, not
    numel.

    >>> random_indices(100, 4, key=1)
    tensor([40, 46, 71, 95], dtype=torch.int32)
    """
    bounds = np.arange(k + 1, dtype=np.int64) * numel // k
    generator = np.random.Generator(np.random.Philox(key))
    indices = bounds[:-1] + (generator.random(k) * np.diff(bounds)).astype(np.int64)
    indices = np.sort((indices + generator.integers(numel)) % numel)
    return torch.from_numpy(indices).to(index_dtype(numel))


@dataclass(frozen=True)
class RandomK(Compressor):
    """k entries drawn at random, scaled up to make up for the others; the key tells which.

        C(x)_i = (n / k) x_i for the k drawn entries, 0 for the others

    **Cost**: O(k); 4 bytes a value, and no index. **Error**: unbiased; E|C(x) - x|² = (n/k - 1) |x|².

    >>> RandomK(0.01).num_bytes(1_000_000)
    40000

    Args:
        ratio: The share of entries to send.
    """

    ratio: float
    is_unbiased = True

    def __post_init__(self) -> None:
        check_ratio(self.ratio)

    def num_bytes(self, numel: int) -> int:
        return 4 * wanted_entries(self.ratio, numel)

    def encode(self, x: Tensor, key: int, *, out: Tensor) -> int:
        k = wanted_entries(self.ratio, x.numel())
        indices = random_indices(x.numel(), k, key).to(x.device)
        torch.mul(x[indices.long()], x.numel() / k, out=out.view(torch.float32))
        return 0

    def add(self, message: Tensor, key: int, *, out: Tensor) -> None:
        self._check_length(message, out.numel())
        indices = random_indices(out.numel(), wanted_entries(self.ratio, out.numel()), key).to(out.device)
        scatter_add(out, indices, message.view(torch.float32))
