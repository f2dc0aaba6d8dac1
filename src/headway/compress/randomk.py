"""Random-k with a shared seed: all ranks draw the same indices, and none travel."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def random_indices(numel: int, k: int, key: int) -> Tensor:
    """Return k ascending distinct indices, one drawn from each of k strata of equal size.

    Every entry has the same probability k/numel where k divides numel, and nearly so elsewhere. Strata instead of a
    permutation: k random numbers are drawn, not numel.

    >>> random_indices(100, 4, key=1)
    tensor([ 1, 26, 50, 95], dtype=torch.int32)
    """
    bounds = np.arange(k + 1, dtype=np.int64) * numel // k
    draws = np.random.Generator(np.random.Philox(key)).random(k)
    indices = bounds[:-1] + (draws * np.diff(bounds)).astype(np.int64)
    return torch.from_numpy(indices.astype(np.int32 if numel < 1 << 31 else np.int64))
