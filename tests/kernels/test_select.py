import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headway.kernels import device, select_topk
from tests.kernels.data import DISTRIBUTIONS, SIZES, gaussian, spikes_of_every_kind, topk_by_sorting


def _ks(numel: int) -> list[int]:
    return sorted({0, min(1, numel), numel // 100, numel // 10, numel // 2, max(0, numel - 1), numel})


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("numel", SIZES)
def test_equals_a_plain_sort(name, numel, threads):
    x = DISTRIBUTIONS[name](numel)
    for k in _ks(numel):
        indices = select_topk(x, k)
        assert indices.dtype == torch.int32
        np.testing.assert_array_equal(indices.numpy(), topk_by_sorting(x, k), err_msg=f"k = {k}")


@given(bits=hnp.arrays(np.uint32, st.integers(1, 600)), share=st.floats(0, 1))
def test_equals_a_plain_sort_for_any_bits(bits, share):
    x = torch.from_numpy(bits.view(np.float32))
    k = round(share * len(bits))
    np.testing.assert_array_equal(select_topk(x, k).numpy(), topk_by_sorting(x, k))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_formats(dtype):
    x = spikes_of_every_kind(3000).to(dtype)
    np.testing.assert_array_equal(select_topk(x, 300).numpy(), topk_by_sorting(x, 300))


def test_input_may_be_strided_and_part_of_a_graph():
    x = gaussian(4000).view(40, 100).t().requires_grad_()
    assert not x.is_contiguous()
    np.testing.assert_array_equal(select_topk(x, 77).numpy(), topk_by_sorting(x, 77))


def test_input_is_unchanged():
    x = gaussian(3000)
    before = x.clone()
    select_topk(x, 100)
    assert torch.equal(x, before)


def test_indices_are_64_bit_where_needed(monkeypatch, threads):
    monkeypatch.setattr("headway.kernels.arrays.MAX_INT32", 4000)
    x = gaussian(20_000)
    indices = select_topk(x, 500)
    assert indices.dtype == torch.int64
    np.testing.assert_array_equal(indices.numpy(), topk_by_sorting(x, 500))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_torch_operations_give_the_same(name):
    x = DISTRIBUTIONS[name](5000)
    for k in (1, 50, 2500, 5000):
        assert torch.equal(device.select_topk(x, k), select_topk(x, k))


@pytest.mark.parametrize("k", [-1, 11])
def test_k_out_of_range_is_refused(k):
    with pytest.raises(ValueError, match=f"k is {k}, but must be between 0 and the number of entries, 10"):
        select_topk(torch.zeros(10), k)


def test_other_dtypes_are_refused():
    with pytest.raises(ValueError, match="float64"):
        select_topk(torch.zeros(10, dtype=torch.float64), 1)
