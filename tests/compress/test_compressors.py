"""Every compressor, every awkward gradient: sizes are known, nothing is lost, bad messages are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.compress import (
    BucketMemory,
    LayerwiseTopK,
    MSTopK,
    Quantized,
    Shape,
    TopK,
    gain_of,
    random_indices,
    wanted_entries,
)
from headway.compress.mstopk import search_topk
from headway.errors import MessageError
from headway.kernels import noise_key

COMPRESSORS = {
    "topk": TopK(0.05),
    "topk all": TopK(1.0),
    "topk fp16": TopK(0.05, "fp16"),
    "topk int8": TopK(0.05, "int8"),
    "layerwise": LayerwiseTopK(0.05),
    "layerwise fp16": LayerwiseTopK(0.05, "fp16"),
    "mstopk": MSTopK(0.05),
    "quantized 8": Quantized(8),
    "quantized 4": Quantized(4),
}
EXACT = ("topk", "topk all", "layerwise", "mstopk")
SHAPES = {"one entry": Shape((1,)), "odd": Shape((301, 7, 64)), "two blocks": Shape((4097,)), "many": Shape((3,) * 40)}
GRADIENTS = {
    "zeros": lambda numel: torch.zeros(numel),
    "ties": lambda numel: torch.ones(numel) * (torch.arange(numel) % 2 * 2 - 1),
    "normal": lambda numel: torch.randn(numel, generator=torch.Generator().manual_seed(numel)),
    "heavy": lambda numel: torch.randn(numel, generator=torch.Generator().manual_seed(numel)) ** 5,
    "tiny": lambda numel: torch.full((numel,), 1e-42),
}

each = pytest.mark.parametrize("name", COMPRESSORS)
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def decompressed(name: str, message: torch.Tensor, shape: Shape) -> torch.Tensor:
    out = torch.zeros(shape.numel)
    COMPRESSORS[name].add(message, shape, out)
    return out


@each
@each_shape
@pytest.mark.parametrize("kind", GRADIENTS)
def test_what_is_sent_and_what_stays_is_what_was_there(name, shape, kind):
    memory = BucketMemory(shape)
    for step in range(4):
        gradient = GRADIENTS[kind](shape.numel) * (step + 1)
        before = memory.residual.clone()
        message = COMPRESSORS[name].compress(gradient, memory, noise_key(0, step, 0)).message
        assert message.numel() == COMPRESSORS[name].message_bytes(shape)
        after = decompressed(name, message, shape) + memory.residual
        if name in EXACT:
            assert torch.equal(after, gradient + before)
        else:
            torch.testing.assert_close(after, gradient + before, rtol=1e-5, atol=1e-6 * float(gradient.abs().max()))


@each
@each_shape
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_inf_and_nan_are_sent_and_never_stay(name, shape, bad):
    memory = BucketMemory(shape)
    gradient = GRADIENTS["normal"](shape.numel)
    gradient[shape.numel // 2] = bad
    compressed = COMPRESSORS[name].compress(gradient, memory, 1)
    assert not decompressed(name, compressed.message, shape).isfinite().all()
    assert memory.residual.isfinite().all()
    COMPRESSORS[name].compress(GRADIENTS["normal"](shape.numel), memory, 2)
    assert memory.residual.isfinite().all()


@each
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradients_may_be_of_any_type(name, dtype):
    shape = SHAPES["odd"]
    memory = BucketMemory(shape)
    gradient = GRADIENTS["normal"](shape.numel).to(dtype)
    message = COMPRESSORS[name].compress(gradient, memory, 1).message
    sum_ = decompressed(name, message, shape) + memory.residual
    torch.testing.assert_close(sum_, gradient.float(), rtol=1e-4, atol=1e-4)


@each
def test_a_message_of_another_length_is_refused_and_nothing_of_it_used(name):
    shape = SHAPES["odd"]
    message = COMPRESSORS[name].compress(GRADIENTS["normal"](shape.numel), BucketMemory(shape), 1).message
    out = torch.zeros(shape.numel)
    for wrong in (message[:-4], torch.cat([message, message[:4]]), message[:0]):
        with pytest.raises(MessageError):
            COMPRESSORS[name].add(wrong.clone(), shape, out)
    assert not out.any()


@pytest.mark.parametrize("name", ["topk", "layerwise", "mstopk"])
def test_a_message_with_wrong_indices_is_refused(name):
    shape = SHAPES["two blocks"]
    message = COMPRESSORS[name].compress(GRADIENTS["normal"](shape.numel), BucketMemory(shape), 1).message
    message[0] = 255  # more indices in the first block than there are
    with pytest.raises(MessageError):
        COMPRESSORS[name].add(message, shape, torch.zeros(shape.numel))


@pytest.mark.parametrize("name", ["topk", "layerwise", "mstopk"])
def test_the_gain_is_that_of_what_was_sent(name):
    shape = SHAPES["odd"]
    gradient = GRADIENTS["heavy"](shape.numel)
    compressed = COMPRESSORS[name].compress(gradient, BucketMemory(shape), 1)
    sent = decompressed(name, compressed.message, shape)
    assert compressed.gain == pytest.approx(float(sent.square().sum() / gradient.square().sum()), rel=1e-4)
    assert 0.3 < compressed.gain < 1


def test_layers_are_all_heard():
    """One large layer must not silence a small one."""
    shape = Shape((1000, 100))
    gradient = torch.cat([torch.full((1000,), 100.0), torch.ones(100)])
    for compressor, num_small in ((TopK(0.05), 0), (LayerwiseTopK(0.05), 5)):
        out = torch.zeros(shape.numel)
        compressor.add(compressor.compress(gradient, BucketMemory(shape), 1).message, shape, out)
        assert int((out[1000:] != 0).sum()) == num_small


def test_whole_and_layers_share_one_residual():
    memory = BucketMemory(Shape((3, 2)))
    memory.whole.accumulate(torch.arange(5.0))
    assert [layer.residual.tolist() for layer in memory.layers] == [[0, 1, 2], [3, 4]]
    memory.layers[1].residual.zero_()
    assert memory.residual.tolist() == [0, 1, 2, 0, 0]


def test_a_memory_takes_no_room_before_it_is_used():
    memory = BucketMemory(Shape((10,)))
    assert not memory.is_used
    memory.whole.accumulate(torch.ones(10))
    assert memory.is_used


@given(st.integers(1, 3000), st.data())
def test_the_search_finds_k_of_the_largest(numel, data):
    k = data.draw(st.integers(1, numel))
    x = torch.from_numpy(np.random.default_rng(numel).normal(size=numel).astype(np.float32))
    indices = search_topk(x, k)
    assert indices.numel() == k
    assert torch.equal(indices, indices.unique())
    kth = x.abs().sort(descending=True).values[k - 1]
    assert x[indices.long()].abs().min() >= kth - float(x.abs().max()) * 2.0**-20


@given(st.integers(1, 100_000), st.integers(0, 2**63), st.data())
def test_random_indices_are_distinct_and_follow_from_the_key(numel, key, data):
    k = data.draw(st.integers(1, min(numel, 2000)))
    indices = random_indices(numel, k, key)
    assert torch.equal(indices, indices.unique())
    assert int(indices[0]) >= 0
    assert int(indices[-1]) < numel
    assert torch.equal(indices, random_indices(numel, k, key))


def test_random_indices_hit_every_entry_alike():
    counts = torch.zeros(100)
    for key in range(6000):
        counts[random_indices(100, 60, key).long()] += 1
    assert float((counts / 3600 - 1).abs().max()) < 0.06


@pytest.mark.parametrize(
    ("ratio", "numel", "k"), [(1.0, 7, 7), (0.01, 100, 1), (0.011, 100, 2), (1e-9, 10, 1), (0.1, 30, 3), (0.3, 10, 3)]
)
def test_k_is_the_ceiling_and_at_least_one(ratio, numel, k):
    assert wanted_entries(ratio, numel) == k


def test_a_gain_of_nothing_is_one_and_of_inf_unknown():
    assert gain_of(torch.zeros(3), torch.zeros(3)) == 1.0
    assert math.isnan(gain_of(torch.tensor([math.inf]), torch.zeros(3)))
