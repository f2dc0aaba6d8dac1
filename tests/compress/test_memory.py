"""The memory of a bucket."""

from __future__ import annotations

import torch

from headway.compress import BucketMemory, Shape


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
