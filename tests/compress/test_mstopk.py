"""The search of MSTopk."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.compress import BucketMemory, ErrorFeedback, MSTopK, Shape, TopK, random_indices
from headway.compress.mstopk import search_topk
from headway.kernels import Memory, select_topk
from headway.kernels.arrays import torch_operations


@given(st.integers(1, 3000), st.data())
def test_the_search_finds_k_of_the_largest(numel, data):
    k = data.draw(st.integers(1, numel))
    x = torch.from_numpy(np.random.default_rng(numel).normal(size=numel).astype(np.float32))
    indices = search_topk(x, k)
    assert indices.numel() == k
    assert torch.equal(indices, indices.unique())
    kth = x.abs().sort(descending=True).values[k - 1]
    assert x[indices.long()].abs().min() >= kth - float(x.abs().max()) * 2.0**-20


@pytest.mark.parametrize("numel", [1000, 1001])
def test_indices_are_64_bit_where_needed(numel, monkeypatch):
    """As with a bucket of 2^31 entries, if an int32 could count to 1000 only."""
    monkeypatch.setattr("headway.kernels.arrays.MAX_INT32", 1000)
    expected = torch.int32 if numel == 1000 else torch.int64
    x = torch.randn(numel, generator=torch.Generator().manual_seed(0))
    assert search_topk(x, 10).dtype == expected
    assert random_indices(numel, 10, key=1).dtype == expected
    with torch_operations():
        assert select_topk(x, 10).dtype == expected
        assert Memory(numel).select(x, 0).indices.dtype == expected


def test_a_compressor_of_64_bit_indices_loses_nothing(monkeypatch):
    monkeypatch.setattr("headway.kernels.arrays.MAX_INT32", 1000)
    x = torch.randn(3000, generator=torch.Generator().manual_seed(0))
    for compressor in (TopK(0.05), MSTopK(0.05)):
        memory = BucketMemory(Shape((3000,)))
        message = ErrorFeedback(compressor).compress(x, memory, 1).message
        out = torch.zeros(3000)
        compressor.add(message, 1, out=out)
        assert torch.equal(out + memory.residual, x)
        assert int(out.count_nonzero()) == 150
