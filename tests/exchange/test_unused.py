"""Parameters that a step does not use: nothing of their residuals is sent, and nothing of them is lost."""

from __future__ import annotations

import pytest
import torch

from headway.compress import BucketMemory, Shape
from headway.exchange.unused import unused_kept

SHAPE = Shape((100, 3, 200))


@pytest.mark.parametrize("unused", [(), (0,), (1,), (0, 2), (0, 1, 2)])
def test_residuals_of_parameters_without_a_gradient_take_no_part_and_stay_to_the_bit(unused):
    memory = BucketMemory(SHAPE, residual=torch.linspace(-5, 5, SHAPE.numel))
    gradient = torch.ones(SHAPE.numel)
    before = [part.clone() for part in SHAPE.split(memory.residual)]
    for place in unused:
        SHAPE.split(gradient)[place].zero_()
    with unused_kept(gradient, memory):
        for place, part in enumerate(SHAPE.split(memory.residual)):
            assert torch.equal(part, torch.zeros_like(part) if place in unused else before[place])
        for place, part in enumerate(SHAPE.split(memory.residual)):
            part.add_(place not in unused)
    for place, part in enumerate(SHAPE.split(memory.residual)):
        assert torch.equal(part, before[place] if place in unused else before[place] + 1)


def test_a_gradient_that_only_begins_with_zeros_is_used():
    memory = BucketMemory(Shape((1000,)), residual=torch.ones(1000))
    gradient = torch.zeros(1000)
    gradient[-1] = 1e-30
    with unused_kept(gradient, memory):
        assert torch.equal(memory.residual, torch.ones(1000))
