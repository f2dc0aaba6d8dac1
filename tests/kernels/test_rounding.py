"""The expected gain of stochastic rounding."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from headway.kernels import dequantize, noise_key, quantize, quantized_bytes, rounding_gain
from headway.kernels.arrays import SCALE_BLOCK as BLOCK
from headway.kernels.arrays import torch_operations
from tests.kernels.data import gaussian, heavy_tailed, mostly_zero


def measured_gain(x: torch.Tensor, bits: int, num_draws: int) -> float:
    message, sent = torch.empty(quantized_bytes(x.numel(), bits), dtype=torch.uint8), torch.empty(x.numel())
    errors = []
    for draw in range(num_draws):
        quantize(x, bits, noise_key(0, draw, 0), out=message)
        dequantize(message, bits, out=sent)
        errors.append(float((x - sent).double().square().sum()))
    energy = float(x.double().square().sum())
    return 1 - float(np.mean(errors)) / energy if energy else 1.0


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
@pytest.mark.parametrize("make", [gaussian, heavy_tailed, mostly_zero])
@pytest.mark.parametrize("numel", [1, 2047, 10_001])
def test_it_is_what_rounding_preserves_on_average(make, bits, numel, threads):
    x = make(numel)
    error = 1 - rounding_gain(x, bits)
    assert 1 - measured_gain(x, bits, num_draws=40) == pytest.approx(error, rel=0.25 if numel > 1 else 0.5, abs=1e-6)


def test_four_bits_lose_more_than_there_is_where_an_entry_of_each_block_is_far_larger_than_the_others():
    x = gaussian(100_000)
    x[::2048] = 70.0
    assert rounding_gain(x, 4) < -0.5
    assert rounding_gain(x, 8) > 0.95
    assert rounding_gain(gaussian(100_000), 4) > 0.9


@pytest.mark.parametrize("bits", [8, 4, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_torch_operations_agree(bits, dtype):
    x = heavy_tailed(10_001).to(dtype)
    with torch_operations():
        theirs = rounding_gain(x, bits)
    assert 1 - theirs == pytest.approx(1 - rounding_gain(x, bits), rel=1e-4)


@pytest.mark.parametrize("path", [torch_operations, torch.no_grad], ids=["torch", "loops"])
def test_special_tensors(path):
    with path():
        assert rounding_gain(torch.zeros(5000), 4) == 1
        assert rounding_gain(torch.full((5000,), 1e-41), 4) == 0  # too small for a scale: sent as zeros


@pytest.mark.parametrize("path", [torch_operations, torch.no_grad], ids=["torch", "loops"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_blocks_that_are_not_finite_are_left_out(path, bad, threads):
    """A step with one Inf gives a gain curve, so it has to give the gains of codes too."""
    x = heavy_tailed(3 * BLOCK + 100)
    without = torch.cat([x[:BLOCK], x[2 * BLOCK :]])
    x[BLOCK + 5] = bad
    with path():
        assert rounding_gain(x, 4) == pytest.approx(rounding_gain(without, 4), rel=1e-6)
        assert math.isnan(rounding_gain(x[BLOCK : 2 * BLOCK], 4))  # nothing is known of it


def test_an_unknown_number_of_bits_is_refused():
    with pytest.raises(ValueError, match="bits is 3, but must be one of 8, 4, 2, 1"):
        rounding_gain(torch.zeros(4), 3)
