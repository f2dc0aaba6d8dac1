import numpy as np
import pytest
import torch

from headway.errors import MessageError
from headway.kernels import VALUE_FORMATS, decode_values, device, encode_values, value_bytes
from tests.kernels.data import DISTRIBUTIONS, gaussian

SIZES = [0, 1, 3, 2047, 2048, 2049, 5000]


def _encode(values, value_format):
    payload = torch.empty(value_bytes(values.numel(), value_format), dtype=torch.uint8)
    encode_values(values, value_format, out=payload)
    return payload


def _round_trip(values, value_format):
    out = torch.empty_like(values)
    decode_values(_encode(values, value_format), values.numel(), value_format, out=out)
    return out


@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_fp32_is_exact(name, numel):
    values = DISTRIBUTIONS[name](numel)
    assert torch.equal(_round_trip(values, "fp32").view(torch.int32), values.view(torch.int32))


@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("scale", [1.0, 1e5])
def test_fp16_rounds_to_nearest_and_saturates(name, numel, scale):
    values = DISTRIBUTIONS[name](numel) * scale
    expected = np.clip(values.numpy(), -65504, 65504)
    expected[~np.isfinite(values.numpy())] = values.numpy()[~np.isfinite(values.numpy())]
    np.testing.assert_array_equal(_round_trip(values, "fp16").numpy(), expected.astype(np.float16).astype(np.float32))


CODED = pytest.mark.parametrize(("value_format", "block_size", "levels"), [("int8", 2048, 127), ("int4", 256, 7)])


@pytest.mark.parametrize("numel", SIZES[1:])
@pytest.mark.parametrize("scale", [1.0, 1e-36, 1e36])
@CODED
def test_the_error_of_a_code_is_bounded_by_the_block(numel, scale, value_format, block_size, levels):
    values = gaussian(numel) * scale
    arrived = _round_trip(values, value_format)
    for block, got in zip(values.split(block_size), arrived.split(block_size), strict=True):
        assert (block - got).abs().max() <= block.abs().max() / (2 * levels) * 1.001


@pytest.mark.parametrize("numel", SIZES[1:])
def test_signs_come_with_the_mean_magnitude_of_their_block(numel):
    values = gaussian(numel)
    arrived = _round_trip(values, "sign")
    for block, got in zip(values.split(256), arrived.split(256), strict=True):
        assert torch.equal(got.sign(), block.sign())
        torch.testing.assert_close(got.abs(), block.abs().mean().expand_as(got))


@pytest.mark.parametrize(("value_format", "block_size"), [("int8", 2048), ("int4", 256), ("sign", 256)])
def test_a_code_marks_a_block_that_is_not_finite(value_format, block_size):
    values, start = gaussian(5000), 2048
    values[start + 100] = torch.inf
    arrived = _round_trip(values, value_format)
    assert arrived[start : start + block_size].isnan().all()
    assert arrived[:start].isfinite().all()
    assert arrived[start + block_size :].isfinite().all()


@pytest.mark.parametrize("scale", [1e-39, 1e-42])
@pytest.mark.parametrize("value_format", ["int8", "int4"])
def test_values_too_small_to_scale_are_zero(scale, value_format):
    assert not _round_trip(gaussian(3000) * scale, value_format).any()


@pytest.mark.parametrize("value_format", VALUE_FORMATS)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_torch_operations_give_the_same_bytes(name, value_format):
    values = DISTRIBUTIONS[name](5000)
    payload, out = torch.empty(value_bytes(5000, value_format), dtype=torch.uint8), torch.empty(5000)
    device.encode_values(values, value_format, payload)
    device.decode_values(payload, value_format, out)
    np.testing.assert_array_equal(out.numpy(), _round_trip(values, value_format).numpy())


@pytest.mark.parametrize("value_format", VALUE_FORMATS)
def test_wrong_length_is_refused(value_format):
    payload = torch.zeros(value_bytes(100, value_format) + 4, dtype=torch.uint8)
    with pytest.raises(MessageError, match=f"100 values in {value_format}"):
        decode_values(payload, 100, value_format, out=torch.empty(100))
    with pytest.raises(ValueError, match="out has"):
        encode_values(torch.zeros(100), value_format, out=payload)


@pytest.mark.parametrize("value_format", VALUE_FORMATS)
def test_misplaced_or_mistyped_buffers_are_refused(value_format):
    num_bytes = value_bytes(100, value_format)
    with pytest.raises(ValueError, match="multiple of 4 bytes"):
        decode_values(torch.zeros(num_bytes + 1, dtype=torch.uint8)[1:], 100, value_format, out=torch.empty(100))
    payload = torch.zeros(num_bytes, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"out must be a contiguous tensor of torch\.float32"):
        decode_values(payload, 100, value_format, out=torch.empty(100, dtype=torch.float64))


def test_unknown_format_is_refused():
    with pytest.raises(ValueError, match="'fp8', but must be one of fp32, fp16, int8, int4, sign"):
        value_bytes(1, "fp8")
