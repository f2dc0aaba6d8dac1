"""Scaling a compressor to a contraction."""

from __future__ import annotations

from headway.compress import Contraction, StochasticQuantizer
from tests.compress.coding import normal, sent_by


def test_few_bits_alone_add_more_noise_than_there_is_signal_and_their_contraction_does_not():
    x = normal(5000)
    assert float((sent_by(StochasticQuantizer(bits=1), x) - x).norm() / x.norm()) > 1.5
    assert float((sent_by(Contraction(StochasticQuantizer(bits=1)), x) - x).norm() / x.norm()) < 1
