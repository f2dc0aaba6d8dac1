"""Error feedback around every compressor, on every awkward gradient: nothing is lost."""

from __future__ import annotations

import math

import pytest
import torch

from headway.compress import (
    BucketMemory,
    Compressor,
    ErrorFeedback,
    FusedCompressor,
    LayerwiseTopK,
    MSTopK,
    Shape,
    Sign,
    StochasticQuantizer,
    TopK,
    gain_of,
)
from headway.errors import MessageError
from headway.kernels import VALUE_FORMATS, noise_key
from tests.kernels.data import gaussian

COMPRESSORS = {
    "topk": lambda shape: TopK(0.05),
    "topk all": lambda shape: TopK(1.0),
    "topk fp16": lambda shape: TopK(0.05, "fp16"),
    "topk int8": lambda shape: TopK(0.05, "int8"),
    "topk int4": lambda shape: TopK(0.05, "int4"),
    "topk sign": lambda shape: TopK(0.05, "sign"),
    "layerwise": lambda shape: LayerwiseTopK(0.05, shape=shape),
    "layerwise fp16": lambda shape: LayerwiseTopK(0.05, "fp16", shape=shape),
    "mstopk": lambda shape: MSTopK(0.05),
    "8 bits": lambda shape: StochasticQuantizer(bits=8),
    "4 bits": lambda shape: StochasticQuantizer(bits=4),
    "sign": lambda shape: Sign(),
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


def decoded(compressor: Compressor, message: torch.Tensor, shape: Shape, key: int = 1) -> torch.Tensor:
    out = torch.zeros(shape.numel)
    compressor.add(message, key, out=out)
    return out


@each
@each_shape
@pytest.mark.parametrize("kind", GRADIENTS)
def test_sent_plus_residual_is_gradient_plus_residual_before(name, shape, kind):
    compressor, memory = COMPRESSORS[name](shape), BucketMemory(shape)
    for step in range(4):
        gradient, key = GRADIENTS[kind](shape.numel) * (step + 1), noise_key(0, step, 0)
        before = memory.residual.clone()
        message = ErrorFeedback(compressor).compress(gradient, memory, key).message
        assert message.numel() == compressor.num_bytes(shape.numel)
        after = decoded(compressor, message, shape, key) + memory.residual
        if name in EXACT:
            assert torch.equal(after, gradient + before)
        else:
            torch.testing.assert_close(after, gradient + before, rtol=1e-5, atol=1e-6 * float(gradient.abs().max()))


@each
@each_shape
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_inf_and_nan_are_sent_and_never_stay(name, shape, bad):
    compressor, memory = COMPRESSORS[name](shape), BucketMemory(shape)
    gradient = GRADIENTS["normal"](shape.numel)
    gradient[shape.numel // 2] = bad
    compressed = ErrorFeedback(compressor).compress(gradient, memory, 1)
    assert not decoded(compressor, compressed.message, shape).isfinite().all()
    assert memory.residual.isfinite().all()
    ErrorFeedback(compressor).compress(GRADIENTS["normal"](shape.numel), memory, 2)
    assert memory.residual.isfinite().all()


@each
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradients_of_any_type_are_compressed(name, dtype):
    shape = SHAPES["odd"]
    compressor, memory = COMPRESSORS[name](shape), BucketMemory(shape)
    gradient = GRADIENTS["normal"](shape.numel).to(dtype)
    message = ErrorFeedback(compressor).compress(gradient, memory, 1).message
    total = decoded(compressor, message, shape) + memory.residual
    torch.testing.assert_close(total, gradient.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["topk", "topk fp16", "mstopk", "layerwise"])
def test_the_fused_pass_sends_what_plain_encoding_would(name):
    """The fast path is only faster: from an empty residual its message is that of `encode`."""
    shape = SHAPES["odd"]
    compressor, gradient = COMPRESSORS[name](shape), GRADIENTS["heavy"](shape.numel)
    assert isinstance(compressor, FusedCompressor)
    message = torch.empty(compressor.num_bytes(shape.numel), dtype=torch.uint8)
    compressor.encode(gradient, 1, out=message)
    assert torch.equal(ErrorFeedback(compressor).compress(gradient, BucketMemory(shape), 1).message, message)


@pytest.mark.parametrize("name", ["topk", "layerwise", "mstopk"])
def test_a_message_with_wrong_indices_is_rejected(name):
    shape = SHAPES["two blocks"]
    compressor = COMPRESSORS[name](shape)
    message = ErrorFeedback(compressor).compress(GRADIENTS["normal"](shape.numel), BucketMemory(shape), 1).message
    message[0] = 255  # more indices in the first block than there are entries
    with pytest.raises(MessageError):
        compressor.add(message, 1, out=torch.zeros(shape.numel))


@pytest.mark.parametrize("name", ["topk", "layerwise", "mstopk"])
def test_the_gain_is_that_of_what_was_sent(name):
    shape = SHAPES["odd"]
    compressor, gradient = COMPRESSORS[name](shape), GRADIENTS["heavy"](shape.numel)
    compressed = ErrorFeedback(compressor).compress(gradient, BucketMemory(shape), 1)
    sent = decoded(compressor, compressed.message, shape)
    assert compressed.gain == pytest.approx(float(sent.square().sum() / gradient.square().sum()), rel=1e-4)
    assert 0.3 < compressed.gain < 1


@each
@pytest.mark.parametrize("kind", ["normal", "heavy"])
def test_the_gain_is_one_minus_the_error_over_the_gradient(name, kind):
    """For every compressor, in every step, and however much there is in the residual."""
    shape = SHAPES["two blocks"]
    compressor, memory = COMPRESSORS[name](shape), BucketMemory(shape)
    for step in range(3):
        gradient = GRADIENTS[kind](shape.numel) * (step + 1)
        total = (memory.residual + gradient).double()
        compressed = ErrorFeedback(compressor).compress(gradient, memory, step)
        error = total - decoded(compressor, compressed.message, shape, step).double()
        expected = 1 - float(error.square().sum() / total.square().sum())
        assert compressed.gain == pytest.approx(expected, abs=1e-4)
        assert compressed.gain <= 1


def test_codes_that_lose_more_than_there_is_have_a_negative_gain():
    """The energy of what is sent would tell the contrary: here it is twice that of the gradient."""
    gradient = torch.randn(2048, generator=torch.Generator().manual_seed(0))
    gradient[0] = 70.0
    compressed = ErrorFeedback(StochasticQuantizer(bits=4)).compress(gradient, BucketMemory(Shape((2048,))), 1)
    assert compressed.gain < -0.5


def test_huge_finite_gradients_are_finite():
    """Their norm is not, in float32."""
    for compressor in (TopK(0.5), StochasticQuantizer(bits=8)):
        compressed = ErrorFeedback(compressor).compress(torch.full((100,), 1e30), BucketMemory(Shape((100,))), 1)
        assert compressed.is_finite
        assert 0.4 < compressed.gain <= 1


@pytest.mark.parametrize("value_format", VALUE_FORMATS)
@pytest.mark.parametrize("shape", [None, Shape((400, 600))], ids=["whole", "by layer"])
def test_gains_count_what_values_lose_to_rounding(value_format, shape):
    """Heavy tails, where signs lose much."""
    memory = BucketMemory(Shape((400, 600)))
    g = gaussian(1000) ** 5
    compressor = TopK(0.1, value_format) if shape is None else LayerwiseTopK(0.1, value_format, shape=shape)
    gain = ErrorFeedback(compressor).compress(g.clone(), memory, 0).gain
    assert gain == pytest.approx(1 - float(memory.residual.square().sum() / g.square().sum()), abs=1e-5)


def test_a_gain_of_nothing_is_one_and_of_inf_unknown():
    assert gain_of(torch.zeros(3), torch.zeros(3)) == 1.0
    assert math.isnan(gain_of(torch.tensor([math.inf]), torch.zeros(3)))
