"""Random-k with a shared seed: all ranks draw the same indices, and none travel."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


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
