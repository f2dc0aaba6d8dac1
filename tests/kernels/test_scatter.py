import pytest
import torch

from headway.kernels import gather, scatter_add
from tests.kernels.data import gaussian, same_bits


def _messages(num_ranks: int, numel: int, k: int):
    generator = torch.Generator().manual_seed(0)
    for rank in range(num_ranks):
        indices = torch.randperm(numel, generator=generator)[:k].sort().values.to(torch.int32)
        yield indices, gaussian(k, seed=rank)


@pytest.mark.parametrize("index_type", [torch.int32, torch.int64])
def test_sums_are_in_the_order_of_the_calls(index_type):
    numel, dense = 1000, torch.zeros(1000)
    expected = [0.0] * numel
    for indices, values in _messages(8, numel, 400):
        scatter_add(dense, indices.to(index_type), values)
        for index, value in zip(indices.tolist(), values, strict=True):
            expected[index] = (torch.tensor(expected[index]) + value).item()
    assert same_bits(dense, torch.tensor(expected))


def test_order_of_ranks_matters_to_the_bit():
    """Otherwise the test above would prove nothing."""
    forward, backward = torch.zeros(1000), torch.zeros(1000)
    messages = list(_messages(8, 1000, 400))
    for indices, values in messages:
        scatter_add(forward, indices, values)
    for indices, values in reversed(messages):
        scatter_add(backward, indices, values)
    assert not same_bits(forward, backward)
    torch.testing.assert_close(forward, backward)


def test_gather():
    dense, indices = gaussian(1000), torch.tensor([0, 5, 999], dtype=torch.int32)
    assert torch.equal(gather(dense, indices), dense[indices.long()])
    with pytest.raises(ValueError, match="out has 2 entries"):
        gather(dense, indices, out=torch.empty(2))


@pytest.mark.parametrize("index", [-1, 1000])
def test_out_of_range_is_refused_before_anything_is_written(index):
    dense = torch.zeros(1000)
    with pytest.raises(ValueError, match=f"index {index} is outside"):
        scatter_add(dense, torch.tensor([3, index]), torch.ones(2))
    assert not dense.any()


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="2 values, but 1 indices"):
        scatter_add(torch.zeros(4), torch.tensor([1]), torch.ones(2))
    with pytest.raises(ValueError, match="int32 or int64"):
        scatter_add(torch.zeros(4), torch.tensor([1.0]), torch.ones(1))
    with pytest.raises(ValueError, match="contiguous"):
        scatter_add(torch.zeros(8)[::2], torch.tensor([1]), torch.ones(1))
