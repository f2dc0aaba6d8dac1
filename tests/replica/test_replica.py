"""Flat views of a model, and the optimizer around another one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from headway.replica import FlatView, WrappedOptimizer


def test_a_flat_view_reads_and_writes_in_order():
    tensors = [torch.zeros(2, 2), torch.zeros(3, dtype=torch.bfloat16)]
    view = FlatView(tensors, "parameter")
    view.write(torch.arange(7.0))
    assert tensors[0].tolist() == [[0, 1], [2, 3]]
    assert view.new().tolist() == list(range(7))
    assert not view.is_exact


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_types_that_float32_cannot_hold_are_refused(dtype):
    with pytest.raises(ValueError, match="must be float32, float16 or bfloat16"):
        FlatView([torch.zeros(2, dtype=dtype)], "parameter")


def stepped(**options: object) -> tuple[WrappedOptimizer, nn.Parameter]:
    weight = nn.Parameter(torch.ones(2))
    optimizer = WrappedOptimizer(torch.optim.SGD([weight], lr=0.5, momentum=0.9))
    vars(optimizer).update(options)
    weight.grad = torch.full((2,), 2.0)
    optimizer.step_inner(None)
    return optimizer, weight


def test_the_inner_optimizer_makes_the_update_from_groups_that_both_share():
    optimizer, weight = stepped()
    assert weight.tolist() == [0, 0]
    assert optimizer.param_groups is optimizer.inner.param_groups


def test_a_loss_scaler_skips_the_update_or_has_its_scale_taken_out():
    assert stepped(found_inf=torch.tensor(1.0))[1].tolist() == [1, 1]
    assert stepped(grad_scale=torch.tensor(2.0))[1].tolist() == [0.5, 0.5]


def test_what_is_not_finite_in_a_state_is_dropped():
    optimizer, weight = stepped()
    optimizer.state[weight]["momentum_buffer"][0] = math.inf
    optimizer.drop_nonfinite()
    assert optimizer.state[weight]["momentum_buffer"].tolist() == [0, 2]


def test_a_parameter_that_was_unfrozen_later_is_reported():
    weight = nn.Parameter(torch.ones(2), requires_grad=False)
    optimizer = WrappedOptimizer(torch.optim.SGD([weight], lr=0.5))
    weight.requires_grad_(True)
    with pytest.raises(ValueError, match="unfrozen"):
        optimizer.step_inner(None)
