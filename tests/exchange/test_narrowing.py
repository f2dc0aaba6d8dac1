"""Values in a narrower type: what is finite stays finite, and so does the sum of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from headway.exchange.narrowing import narrow, share_limit

NUMS_RANKS = range(1, 65)


def in_order(shares: Sequence[Tensor]) -> Tensor:
    """Add as a ring does: every partial sum takes one more share."""
    total = shares[0]
    for share in shares[1:]:
        total = total + share
    return total


def in_pairs(shares: Sequence[Tensor]) -> Tensor:
    """Add as a tree does: every partial sum takes another one."""
    if len(shares) == 1:
        return shares[0]
    middle = len(shares) // 2
    return in_pairs(shares[:middle]) + in_pairs(shares[middle:])


@pytest.mark.parametrize("add", [in_order, in_pairs])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_sum_of_what_all_ranks_may_send_is_finite(dtype: torch.dtype, add: Callable[[Sequence[Tensor]], Tensor]):
    largest = torch.tensor([torch.finfo(torch.float32).max])
    for num_ranks in NUMS_RANKS:
        total = add([narrow(largest, dtype, num_ranks)] * num_ranks)
        assert total.dtype == dtype
        assert total.isfinite(), num_ranks


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_little_of_the_range_is_given_up(dtype):
    for num_ranks in NUMS_RANKS:
        assert num_ranks * share_limit(dtype, num_ranks) > 0.95 * torch.finfo(dtype).max


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_limit_is_a_value_of_the_type(dtype):
    for num_ranks in NUMS_RANKS:
        limit = share_limit(dtype, num_ranks)
        assert float(torch.tensor(limit, dtype=dtype)) == limit
