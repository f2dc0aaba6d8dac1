"""The stochastic quantiser."""

from __future__ import annotations

import pytest
import torch

from headway.compress import StochasticQuantizer
from tests.compress.coding import normal, sent_by


def test_the_noise_of_a_fixed_step_does_not_grow_with_what_is_sent():
    """Until it saturates."""
    x = normal(5000)
    for scale in (0.1, 1.0, 5.0):
        assert float((sent_by(StochasticQuantizer(bits=8, step=0.25), scale * x) - scale * x).abs().max()) <= 0.25
    relative = [float((sent_by(StochasticQuantizer(bits=8), scale * x) - scale * x).norm()) for scale in (1.0, 10.0)]
    assert relative[1] == pytest.approx(10 * relative[0], rel=1e-3)


def test_what_saturates_is_counted():
    quantizer = StochasticQuantizer(bits=4, step=0.1)
    x = torch.tensor([0.0, 0.69, 0.71, -5.0])
    assert quantizer.encode(x, 1, out=torch.empty(quantizer.num_bytes(4), dtype=torch.uint8)) == 2


def test_an_automatic_step_must_be_chosen_before_use():
    quantizer = StochasticQuantizer(bits=8, step="auto")
    assert quantizer.num_bytes(100) == 100
    with pytest.raises(ValueError, match="none was chosen yet"):
        quantizer.encode(torch.ones(4), 1, out=torch.empty(4, dtype=torch.uint8))
