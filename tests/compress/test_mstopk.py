"""The search of MSTopk."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.compress.mstopk import search_topk


@given(st.integers(1, 3000), st.data())
def test_the_search_finds_k_of_the_largest(numel, data):
    k = data.draw(st.integers(1, numel))
    x = torch.from_numpy(np.random.default_rng(numel).normal(size=numel).astype(np.float32))
    indices = search_topk(x, k)
    assert indices.numel() == k
    assert torch.equal(indices, indices.unique())
    kth = x.abs().sort(descending=True).values[k - 1]
    assert x[indices.long()].abs().min() >= kth - float(x.abs().max()) * 2.0**-20
