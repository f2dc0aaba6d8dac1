import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import MessageError
from headway.kernels import decode_indices, device, encode_indices, index_bytes
from headway.kernels.indices import index_layout


def _pick(numel: int, k: int, seed: int = 0) -> torch.Tensor:
    chosen = np.random.default_rng(seed).choice(numel, k, replace=False)
    return torch.from_numpy(np.sort(chosen).astype(np.int32))


def _encode(indices: torch.Tensor, numel: int) -> torch.Tensor:
    message = torch.empty(index_bytes(numel, indices.numel()), dtype=torch.uint8)
    encode_indices(indices, numel, out=message)
    return message


CASES = [(0, 0), (1, 0), (1, 1), (255, 255), (256, 1), (256, 200), (70_000, 2), (70_000, 100), (70_000, 7000)]
CASES += [(65_535, 65_535), (300_000, 300), (300_000, 3), (131_071, 1000)]


@pytest.mark.parametrize(("numel", "k"), CASES)
def test_round_trip(numel, k):
    indices = _pick(numel, k)
    message = _encode(indices, numel)
    assert torch.equal(decode_indices(message, numel, k), indices)


@pytest.mark.parametrize(("numel", "k"), CASES)
def test_torch_operations_give_the_same_bytes(numel, k):
    indices, layout = _pick(numel, k), index_layout(numel, k)
    message, decoded = torch.zeros(layout.num_bytes, dtype=torch.uint8), torch.empty(k, dtype=torch.int32)
    device.encode_indices(indices, layout, message)
    assert torch.equal(message, _encode(indices, numel))
    device.decode_indices(message, numel, layout, decoded)
    assert torch.equal(decoded, indices)


@given(numel=st.integers(1, 200_000), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_round_trip_of_any_size(numel, share, seed):
    k = round(numel * share**4)
    indices = _pick(numel, k, seed)
    assert torch.equal(decode_indices(_encode(indices, numel), numel, k), indices)


def test_no_other_number_of_low_bits_takes_less():
    for numel, k in CASES:
        bits = [k * low + k + (max(numel - 1, 0) >> low) for low in range(31)] if k else [0]
        assert min(bits) <= 8 * index_bytes(numel, k) < min(bits) + 64  # two paddings
        assert index_bytes(numel, k) % 4 == 0


@pytest.mark.parametrize(("ratio", "limit"), [(0.1, 0.66), (0.01, 1.08), (0.001, 1.5)])
def test_bytes_an_index(ratio, limit):
    numel = 25_000_000
    assert index_bytes(numel, int(ratio * numel)) <= limit * int(ratio * numel)


def test_indices_that_need_64_bits():
    numel = 2**33
    indices = torch.tensor([0, 7, 2**32 + 1, numel - 1])
    message = _encode(indices, numel)
    decoded = decode_indices(message, numel, 4)
    assert decoded.dtype == torch.int64
    assert torch.equal(decoded, indices)


@pytest.mark.parametrize("indices", [[5, 3], [4, 4], [-1, 3], [3, 10_000]])
def test_unordered_indices_are_refused(indices):
    for numel in (10_000, 100):
        with pytest.raises(ValueError, match="must ascend"):
            _encode(torch.tensor(indices, dtype=torch.int32), numel)


def test_a_wrong_buffer_is_refused():
    with pytest.raises(ValueError, match="out has 3 bytes, but must have"):
        encode_indices(_pick(1000, 10), 1000, out=torch.empty(3, dtype=torch.uint8))
    with pytest.raises(ValueError, match="multiple of 4"):
        encode_indices(_pick(10, 10), 10, out=torch.empty(20, dtype=torch.uint8)[1:5])
    with pytest.raises(ValueError, match="int32 or int64"):
        encode_indices(torch.tensor([1.5]), 10, out=torch.empty(4, dtype=torch.uint8))


class TestMalformed:
    """Whatever arrives, the result is k good indices or MessageError."""

    @given(
        numel=st.sampled_from([1, 254, 255, 256, 1000, 70_000]),
        k=st.integers(0, 300),
        noise=st.randoms(use_true_random=False),
        flips=st.integers(0, 6),
    )
    def test_fuzz(self, numel, k, noise, flips):
        k = min(k, numel)
        message = _encode(_pick(numel, k), numel)
        for _ in range(flips if message.numel() else 0):
            message[noise.randrange(message.numel())] = noise.randrange(256)
        self._good_or_refused(message, numel, k)

    @given(data=st.binary(max_size=700), numel=st.integers(0, 66_000), k=st.integers(0, 300))
    def test_any_bytes(self, data, numel, k):
        k = min(k, numel)
        padded = (data * (index_bytes(numel, k) // max(len(data), 1) + 1))[: index_bytes(numel, k)]
        self._good_or_refused(torch.tensor(list(padded), dtype=torch.uint8), numel, k)

    @staticmethod
    def _good_or_refused(message, numel, k):
        layout, other = index_layout(numel, k), torch.empty(k, dtype=torch.int32)
        try:
            decoded = decode_indices(message, numel, k)
        except MessageError:
            with pytest.raises(MessageError):
                device.decode_indices(message, numel, layout, other)
            return
        device.decode_indices(message, numel, layout, other)
        assert torch.equal(decoded, other)
        assert decoded.numel() == k
        assert (decoded.diff() > 0).all()
        assert k == 0 or (decoded[0] >= 0 and decoded[-1] < numel)

    def test_wrong_length(self):
        with pytest.raises(MessageError, match="9 bytes of indices, but 10 indices below 1000 take 12"):
            decode_indices(torch.zeros(9, dtype=torch.uint8), 1000, 10)

    def test_a_bitmap_with_other_than_k_bits(self):
        message = _encode(_pick(1000, 10), 1000)
        bitmap = message[index_layout(1000, 10).num_low_bytes :]
        bitmap[0] ^= 1
        with pytest.raises(MessageError, match=r"tells of (9|11), not of 10"):
            decode_indices(message, 1000, 10)
        bitmap.fill_(255)
        with pytest.raises(MessageError, match=r"tells of .., not of 10"):
            decode_indices(message, 1000, 10)

    def test_low_bits_that_fall(self):
        message = _encode(torch.tensor([6, 7], dtype=torch.int32), 64)  # both in the same step of the bitmap
        message[0] = 0x67  # 7, then 6
        with pytest.raises(MessageError, match="index number 1 of 2 is out of order"):
            decode_indices(message, 64, 2)

    def test_an_index_beyond_the_end(self):
        message = _encode(torch.tensor([1019], dtype=torch.int32), 1020)
        with pytest.raises(MessageError):
            decode_indices(message, 1019, 1)

    def test_the_peer_is_named(self):
        error = MessageError("bad counts").from_peer(3)
        assert str(error) == "message from rank 3: bad counts"
        assert error.peer == 3
