"""Narrower types: finite values stay finite, and so do their sums."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def share_limit(dtype: torch.dtype, num_ranks: int) -> float:
    """Return the largest value of a type of which N do not overflow when they are added, in whatever order.

        limit = the largest value <= max / (N (1 + u)^(N - 1)),   u = eps / 2

    Rounding makes a sum at most 1 + u times as large, and a value takes part in at most N - 1 sums.

    >>> [share_limit(torch.float16, num_ranks) for num_ranks in (1, 2, 3, 10)]
    [65504.0, 32736.0, 21808.0, 6520.0]
    """
    numbers = torch.finfo(dtype)
    unit = numbers.eps / 2
    mantissa, exponent = math.frexp(numbers.max / (num_ranks * (1 + unit) ** (num_ranks - 1)))
    return math.ldexp(math.floor(mantissa / unit) * unit, exponent)


def narrow(x: Tensor, dtype: torch.dtype, num_ranks: int = 1) -> Tensor:
    """Round to a narrower type; finite values stay finite, and with N ranks the sum of their values does too.

    >>> narrow(torch.tensor([1e6, -torch.inf]), torch.float16)
    tensor([65504.,   -inf], dtype=torch.float16)
    """
    limit = share_limit(dtype, num_ranks)
    return torch.where(x.isfinite(), x.clamp(-limit, limit), x).to(dtype)


def fit(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Return finite float32 values such that a type can hold them, and what they lack, if anything.

    >>> fit(torch.tensor([1.0, 65505.0]), torch.float16)
    (tensor([1.0000e+00, 6.5504e+04]), tensor([0., 1.]))
    """
    limit = torch.finfo(dtype).max
    if limit >= torch.finfo(torch.float32).max or not x.numel():
        return x, None
    lowest, highest = torch.aminmax(x)
    if float(torch.maximum(-lowest, highest)) <= limit:
        return x, None
    fitting = x.clamp(-limit, limit)
    return fitting, (x - fitting).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
