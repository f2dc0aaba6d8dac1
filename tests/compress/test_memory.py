"""The memory of a bucket."""

from __future__ import annotations

import pytest
import torch

from headway.compress import BucketMemory, ErrorFeedback, LayerwiseTopK, Shape, TopK, Undo


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


def test_shapes_add_up_to_the_wider_type():
    half, plain, double = Shape((3,), 2), Shape((4,)), Shape((5,), 8)
    assert sum((half, half), Shape(())) == Shape((3, 3), 2)
    assert sum((half, plain), Shape(())) == Shape((3, 4), 4)
    assert plain + double == Shape((4, 5), 8)


@pytest.mark.parametrize("compressor", [TopK(0.05), LayerwiseTopK(0.05, shape=Shape((3000, 2000)))], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_undo_puts_back_residual_and_thresholds(compressor, dtype):
    shape = Shape((3000, 2000))
    memory, feedback = BucketMemory(shape), ErrorFeedback(compressor)
    for step in range(4):
        gradient = torch.randn(5000, generator=torch.Generator().manual_seed(step)).to(dtype)
        undo = Undo(memory, gradient)
        before, thresholds = memory.residual.clone(), [str(part.threshold) for part in memory.parts]
        feedback.compress(gradient, memory, 1, undo=undo.residual)
        if step == 2:
            assert [str(part.threshold) for part in memory.parts] != thresholds
            undo.run()
            assert torch.equal(memory.residual.view(torch.int32), before.view(torch.int32))
            assert [str(part.threshold) for part in memory.parts] == thresholds


def test_an_undo_needs_no_memory_where_the_gradient_has_room():
    gradient = torch.randn(10)
    assert Undo(BucketMemory(Shape((10,))), gradient).residual.data_ptr() == gradient.data_ptr()
