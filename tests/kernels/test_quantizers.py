import re

import numpy as np
import pytest
import torch

from headway.errors import MessageError
from headway.kernels import dequantize, device, noise_key, quantize, quantize_sign, quantized_bytes
from headway.kernels.quantizers import BITS
from tests.kernels.data import DISTRIBUTIONS, SIZES, gaussian

HALF_RANGE = {8: 127, 4: 7, 2: 1, 1: 0.5}


def _quantize(x, bits, *, step=None, draw=0):
    message = torch.empty(quantized_bytes(x.numel(), bits, step=step), dtype=torch.uint8)
    num_saturated = quantize(x, bits, noise_key(0, draw, 0), step=step, out=message)
    return message, num_saturated


def _arrived(message, numel, bits, *, step=None):
    out = torch.empty(numel)
    dequantize(message, bits, step=step, out=out)
    return out


def _spacing(x, bits):
    """The distance between two values of the grid, for each entry."""
    padded = torch.nn.functional.pad(x, (0, -x.numel() % 2048)).view(-1, 2048)
    return (padded.abs().amax(1, keepdim=True) / HALF_RANGE[bits]).expand_as(padded).flatten()[: x.numel()]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("numel", SIZES)
def test_error_is_less_than_one_spacing(bits, numel, threads):
    x = gaussian(numel)
    message, _ = _quantize(x, bits)
    assert 0 <= message.numel() - (4 * -(-numel // 2048) + -(-numel * bits // 8)) < 4
    assert message.numel() % 4 == 0
    error = (_arrived(message, numel, bits) - x).abs()
    assert (error <= _spacing(x, bits) * 1.0001).all()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("step", [None, "fixed"])
def test_unbiased(bits, step):
    """The mean over many draws is x, to within five standard errors, for every entry."""
    x = gaussian(3000).clamp_(-3, 3)
    step = None if step is None else 3.0 / HALF_RANGE[bits]
    num_draws = 400
    mean = torch.zeros(3000, dtype=torch.float64)
    for draw in range(num_draws):
        mean += _arrived(_quantize(x, bits, step=step, draw=draw)[0], 3000, bits, step=step) / num_draws
    spacing = _spacing(x, bits) if step is None else torch.tensor(step)
    worst = ((mean - x).abs() / (spacing / 2 / np.sqrt(num_draws))).max()
    assert worst < 5
    assert abs(float((mean - x).mean())) < 5 * float(spacing.max()) / 2 / np.sqrt(num_draws * 3000)


@pytest.mark.parametrize("bits", BITS)
def test_every_value_of_the_grid_is_used(bits):
    arrived = _arrived(_quantize(torch.linspace(-1, 1, 2048), bits)[0], 2048, bits)
    assert arrived.unique().numel() == {8: 255, 4: 15, 2: 3, 1: 2}[bits]


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("value", [0.0, 1.0, -1.0])
def test_values_of_the_grid_stay_in_any_number_of_draws(bits, value):
    """Four million draws: noise within 2^-17 of one must not change exact values."""
    x = torch.full((4_000_000,), value)
    x[::2048] = 1.0
    arrived = _arrived(_quantize(x, bits)[0], x.numel(), bits)
    torch.testing.assert_close(arrived, x, rtol=1e-6, atol=0)


@pytest.mark.parametrize("bits", BITS)
def test_all_zero(bits):
    assert not _arrived(_quantize(torch.zeros(3000), bits)[0], 3000, bits).any()


@pytest.mark.parametrize("bits", BITS)
def test_fixed_step_counts_saturated_values(bits):
    limit = HALF_RANGE[bits] * 0.1
    x = torch.tensor([0.0, limit * 0.99, limit * 3, -limit * 5, np.inf, np.nan])
    message, num_saturated = _quantize(x, bits, step=0.1)
    arrived = _arrived(message, 6, bits, step=0.1)
    assert num_saturated == 4
    torch.testing.assert_close(arrived[2:5], torch.tensor([limit, -limit, limit]))
    assert abs(arrived[5]) <= 0.05


def test_a_block_that_is_not_finite_decodes_to_nan():
    x = gaussian(5000)
    x[3000] = np.nan
    arrived = _arrived(_quantize(x, 8)[0], 5000, 8)
    assert arrived[2048:4096].isnan().all()
    assert arrived[:2048].isfinite().all()


def test_draws_differ_by_step_and_repeat_by_key(threads):
    x = gaussian(20_000)
    first, second, again = (_quantize(x, 4, draw=draw)[0] for draw in (0, 1, 0))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_threads_do_not_change_the_result(monkeypatch):
    monkeypatch.setattr("headway.kernels._threads.MIN_CHUNK", 2048)
    x, before = gaussian(20_000), torch.get_num_threads()
    messages = []
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        messages.append(_quantize(x, 2)[0])
    torch.set_num_threads(before)
    assert torch.equal(*messages)


def test_sign_is_the_mean_magnitude_with_sign(threads):
    x = gaussian(5000)
    message = torch.empty(quantized_bytes(5000, 1), dtype=torch.uint8)
    quantize_sign(x, out=message)
    arrived = _arrived(message, 5000, 1)
    for start in (0, 2048, 4096):
        block = x[start : start + 2048]
        torch.testing.assert_close(arrived[start : start + 2048], block.sign() * block.abs().mean())


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("step", [None, 0.3])
def test_torch_operations_give_the_same_bytes(name, bits, step):
    x = DISTRIBUTIONS[name](5001)
    message, num_saturated = _quantize(x, bits, step=step)
    other, out = torch.empty_like(message), torch.empty(5001)
    assert device.quantize(x, bits, noise_key(0, 0, 0), step, other) == num_saturated
    device.dequantize(other, bits, step, out)
    np.testing.assert_array_equal(out.numpy(), _arrived(message, 5001, bits, step=step).numpy())


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_torch_operations_give_the_same_signs(name):
    x = DISTRIBUTIONS[name](5001)
    ours, theirs = (torch.empty(quantized_bytes(5001, 1), dtype=torch.uint8) for _ in range(2))
    quantize_sign(x, out=ours)
    device.quantize_sign(x, theirs)
    torch.testing.assert_close(_arrived(theirs, 5001, 1), _arrived(ours, 5001, 1), equal_nan=True)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="bits is 3, but must be one of 8, 4, 2, 1"):
        quantized_bytes(10, 3)
    for step in (0, -1.0, 1e39, float("nan")):
        with pytest.raises(ValueError, match=re.escape(f"step is {step}")):
            quantized_bytes(10, 8, step=step)
    with pytest.raises(MessageError, match="5 bytes of codes, but 100 values of 4 bits take 56"):
        dequantize(torch.zeros(5, dtype=torch.uint8), 4, out=torch.empty(100))
