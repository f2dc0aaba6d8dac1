"""Random-k with a shared seed: all ranks draw the same indices, and none travel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from headway.compress.base import check_ratio, wanted_entries
from headway.errors import MessageError
from headway.kernels import scatter_add


def random_indices(numel: int, k: int, key: int) -> Tensor:
    """Return k ascending distinct indices, one drawn from each of k strata of nearly equal size, which begin anywhere.

    Every entry has the same probability k/numel. Strata instead of a permutation: k random numbers are drawn, not
    numel.

    >>> random_indices(100, 4, key=1)
    tensor([40, 46, 71, 95], dtype=torch.int32)
    """
    bounds = np.arange(k + 1, dtype=np.int64) * numel // k
    generator = np.random.Generator(np.random.Philox(key))
    indices = bounds[:-1] + (generator.random(k) * np.diff(bounds)).astype(np.int64)
    indices = np.sort((indices + generator.integers(numel)) % numel)
    return torch.from_numpy(indices.astype(np.int32 if numel < 1 << 31 else np.int64))


@dataclass(frozen=True)
class RandomK:
    """k entries drawn at random, made larger for those that were not; who knows the key knows which.

        C(x)_i = (n / k) x_i for the k drawn entries, 0 for the others

    **Cost**: O(k); 4 bytes a value, and no index. **Error**: unbiased; E|C(x) - x|² = (n/k - 1) |x|².

    >>> RandomK(0.01).num_bytes(1_000_000)
    40000

    Args:
        ratio: The share of entries sent.
    """

    ratio: float
    is_unbiased: ClassVar[Literal[True]] = True
    has_bounded_noise: ClassVar[Literal[False]] = False

    def __post_init__(self) -> None:
        check_ratio(self.ratio)

    def num_bytes(self, numel: int) -> int:
        """Return how long a message is."""
        return 4 * wanted_entries(self.ratio, numel)

    def encode(self, x: Tensor, key: int, *, out: Tensor) -> int:
        """Write the values of the entries that the key draws."""
        k = wanted_entries(self.ratio, x.numel())
        indices = random_indices(x.numel(), k, key).to(x.device)
        torch.mul(x[indices.long()], x.numel() / k, out=out.view(torch.float32))
        return 0

    def decode(self, message: Tensor, key: int, *, out: Tensor) -> None:
        """Put the values where the key says."""
        k = wanted_entries(self.ratio, out.numel())
        if message.numel() != 4 * k:
            raise MessageError(f"{message.numel()} bytes, but {k} values take {4 * k}")
        indices = random_indices(out.numel(), k, key).to(out.device)
        out.zero_()
        scatter_add(out, indices, message.view(torch.float32))
