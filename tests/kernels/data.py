"""Test data for kernels, and simple reference implementations."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

SIZES = [0, 1, 2, 15, 16, 17, 255, 256, 257, 2047, 2048, 2049, 5000, 20_000]


def gaussian(numel: int, seed: int = 0) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def heavy_tailed(numel: int, seed: int = 0) -> Tensor:
    """Student's t with two degrees of freedom: infinite variance."""
    return torch.from_numpy(np.random.default_rng(seed).standard_t(2, numel).astype(np.float32))


def mostly_zero(numel: int, seed: int = 0) -> Tensor:
    x = gaussian(numel, seed)
    x[torch.rand(numel, generator=torch.Generator().manual_seed(seed + 1)) < 0.98] = 0
    return x


def spikes_of_every_kind(numel: int, seed: int = 0) -> Tensor:
    """Inf, NaN of several payloads and both signs, zeros of both signs, subnormals and ties, at random places."""
    special = torch.tensor(
        [0x7F800000, -0x800000, 0x7FC00000, 0x7F800001, -1, 0, -0x80000000, 1, -0x7FFFFFFF, 0x3F800000, -0x40800000],
        dtype=torch.int64,
    )
    special = special.to(torch.int32).view(torch.float32)
    x = gaussian(numel, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    places = torch.rand(numel, generator=generator) < 0.2
    x[places] = special[torch.randint(len(special), (int(places.sum()),), generator=generator)]
    return x


DISTRIBUTIONS = {
    "gaussian": gaussian,
    "heavy-tailed": heavy_tailed,
    "mostly zero": mostly_zero,
    "zeros": lambda numel: torch.zeros(numel),
    "equal": lambda numel: torch.full((numel,), -2.5),
    "subnormal": lambda numel: gaussian(numel) * 1e-41,
    "all kinds": spikes_of_every_kind,
}


def topk_by_sorting(x: Tensor, k: int) -> npt.NDArray[np.int64]:
    """The definition: sort by magnitude, NaN above Inf, the lower index first among equals; then by index."""
    magnitude = x.detach().reshape(-1).float().abs().double().numpy().copy()
    magnitude[np.isinf(magnitude)] = 1e300
    magnitude[np.isnan(magnitude)] = 2e300
    return np.sort(np.argsort(-magnitude, kind="stable")[:k])


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))
