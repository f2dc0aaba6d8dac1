from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway import kernels
from headway.errors import MessageError
from headway.kernels import VALUE_FORMATS, add_message, index_bytes, message_bytes
from headway.kernels.arrays import torch_operations
from headway.kernels.indices import index_layout
from tests.kernels.data import gaussian, same_bits

each_format = pytest.mark.parametrize("value_format", VALUE_FORMATS)


def _message(indices: torch.Tensor, values: torch.Tensor, numel: int, value_format) -> torch.Tensor:
    k, num_index_bytes = indices.numel(), index_bytes(numel, indices.numel())
    message = torch.empty(message_bytes(numel, k, value_format), dtype=torch.uint8)
    kernels.encode_indices(indices, numel, out=message[:num_index_bytes])
    kernels.encode_values(values, value_format, out=message[num_index_bytes:])
    return message


def _some_message(numel: int, k: int, value_format, seed: int = 0) -> torch.Tensor:
    chosen = torch.randperm(numel, generator=torch.Generator().manual_seed(seed))[:k]
    return _message(chosen.sort().values.to(torch.int32), gaussian(k, seed=seed), numel, value_format)


@each_format
@pytest.mark.parametrize(("numel", "k"), [(1, 1), (7, 0), (300, 257), (5000, 4099), (70_000, 2049)])
def test_adds_what_its_parts_decode_to_in_the_same_order(value_format, numel, k):
    ours, theirs, by_torch = (gaussian(numel) for _ in range(3))
    for seed in range(3):
        message, num_index_bytes = _some_message(numel, k, value_format, seed), index_bytes(numel, k)
        add_message(message, k, value_format, out=ours)
        values = torch.empty(k)
        kernels.decode_values(message[num_index_bytes:], k, value_format, out=values)
        kernels.scatter_add(theirs, kernels.decode_indices(message[:num_index_bytes], numel, k), values)
        with torch_operations():
            add_message(message, k, value_format, out=by_torch)
    assert same_bits(ours, theirs)
    assert k == 0 or not same_bits(ours, gaussian(numel))
    torch.testing.assert_close(by_torch, ours)


def test_a_block_with_inf_adds_nan():
    values = gaussian(600)
    values[300] = torch.inf
    out = torch.zeros(600)
    add_message(_message(torch.arange(600, dtype=torch.int32), values, 600, "sign"), 600, "sign", out=out)
    assert out[256:512].isnan().all()
    assert out[:256].isfinite().all()
    assert out[512:].isfinite().all()


class TestMalformed:
    """Nothing of a bad message is added, and nothing beyond the buffer is touched."""

    NUMEL, K = 1000, 10

    def _rejected(self, message: torch.Tensor, match: str, numel: int = NUMEL, k: int = K) -> None:
        for operations in (nullcontext, torch_operations):
            room = torch.zeros(numel + 200)
            with operations(), pytest.raises(MessageError, match=match):
                add_message(message, k, "fp32", out=room[100:-100])
            assert not room.any()

    def test_another_length(self):
        message = _some_message(self.NUMEL, self.K, "fp32")
        for wrong in (message[:-4], message[:-1], torch.cat([message, message[:4]]), message[:0]):
            self._rejected(wrong.clone(), f"{wrong.numel()} bytes, but 10 of 1000 entries as fp32 take 52")

    @pytest.mark.parametrize("bits", [0, 255])
    def test_a_bitmap_with_fewer_or_more_than_k_bits(self, bits):
        message = _some_message(self.NUMEL, self.K, "fp32")
        layout = index_layout(self.NUMEL, self.K)
        message[layout.num_low_bytes : layout.num_bytes] = bits
        self._rejected(message, r"tells of \d+, not of 10")

    def test_one_bit_too_many_and_one_too_few(self):
        layout = index_layout(self.NUMEL, self.K)
        for place in range(8 * layout.num_low_bytes, 8 * layout.num_bytes):
            message = _some_message(self.NUMEL, self.K, "fp32")
            message[place // 8] ^= 1 << place % 8
            self._rejected(message, r"tells of (9|11), not of 10")

    def test_indices_that_descend(self):
        message = _message(torch.tensor([6, 7], dtype=torch.int32), torch.ones(2), 64, "fp32")
        message[0] = 0x67  # 7, then 6: both in the same step of the bitmap
        self._rejected(message, "out of order|do not ascend", 64, 2)

    def test_an_index_that_comes_twice(self):
        message = _message(torch.tensor([6, 7], dtype=torch.int32), torch.ones(2), 64, "fp32")
        message[0] = 0x66
        self._rejected(message, "out of order|do not ascend", 64, 2)

    def test_an_index_beyond_the_end(self):
        message = _message(torch.tensor([3, 1019], dtype=torch.int32), torch.ones(2), 1020, "fp32")
        assert message_bytes(1019, 2, "fp32") == message.numel()
        self._rejected(message, "not below 1019|do not ascend", 1019, 2)

    @given(
        value_format=st.sampled_from(VALUE_FORMATS),
        numel=st.sampled_from([1, 255, 1000, 70_000]),
        k=st.integers(0, 300),
        noise=st.randoms(use_true_random=False),
        flips=st.integers(0, 6),
    )
    def test_fuzz(self, value_format, numel, k, noise, flips):
        k = min(k, numel)
        message = _some_message(numel, k, value_format)
        for _ in range(flips if message.numel() else 0):
            message[noise.randrange(message.numel())] = noise.randrange(256)
        room = torch.zeros(numel + 200)
        try:
            add_message(message, k, value_format, out=room[100:-100])
        except MessageError:
            assert not room.any()
            with pytest.raises(MessageError):
                kernels.decode_indices(message[: index_bytes(numel, k)], numel, k)
        assert not room[:100].any()
        assert not room[-100:].any()


def test_bad_arguments_are_refused():
    message = _some_message(1000, 10, "fp32")
    with pytest.raises(ValueError, match=r"out must be a contiguous tensor of torch\.float32"):
        add_message(message, 10, "fp32", out=torch.zeros(1000, dtype=torch.float64))
    with pytest.raises(ValueError, match="out must be a contiguous"):
        add_message(message, 10, "fp32", out=torch.zeros(2000)[::2])
    with pytest.raises(ValueError, match="multiple of 4"):
        add_message(torch.cat([message[:1], message])[1:], 10, "fp32", out=torch.zeros(1000))
