"""Top-k of every tensor."""

from __future__ import annotations

import pytest
import torch

from headway.compress import BucketMemory, ErrorFeedback, LayerwiseTopK, Shape, TopK
from headway.errors import MessageError

SHAPE = Shape((1000, 100))


def test_a_large_layer_does_not_silence_a_small_one():
    gradient = torch.cat([torch.full((1000,), 100.0), torch.ones(100)])
    for compressor, num_small in ((TopK(0.05), 0), (LayerwiseTopK(0.05, shape=SHAPE), 5)):
        out = torch.zeros(SHAPE.numel)
        compressor.add(ErrorFeedback(compressor).compress(gradient, BucketMemory(SHAPE), 1).message, 1, out=out)
        assert int((out[1000:] != 0).sum()) == num_small


def test_a_message_of_another_length_is_rejected_and_nothing_of_it_used():
    compressor, out = LayerwiseTopK(0.05, shape=SHAPE), torch.zeros(SHAPE.numel)
    message = ErrorFeedback(compressor).compress(torch.randn(SHAPE.numel), BucketMemory(SHAPE), 1).message
    for wrong in (message[:-4], torch.cat([message, message[:4]]), message[:0]):
        with pytest.raises(MessageError):
            compressor.add(wrong.clone(), 1, out=out)
    assert not out.any()
