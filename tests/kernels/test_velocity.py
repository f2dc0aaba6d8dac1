"""Momentum correction in the pass that adds the gradient, against its equations."""

from __future__ import annotations

import contextlib

import pytest
import torch

from headway.kernels import Memory, Momentum, Velocity, select_topk
from headway.kernels.arrays import torch_operations
from tests.kernels.data import gaussian, same_bits

NUMEL, K = 3000, 30
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


class Reference:
    """u = m u + g; v = v + u or, with Nesterov, v + m u + g; where an entry is sent, v is cleared and u masked."""

    def __init__(self, momentum: Momentum) -> None:
        self.momentum = momentum
        self.u, self.v = torch.zeros(NUMEL), torch.zeros(NUMEL)

    def add(self, gradient: torch.Tensor) -> torch.Tensor:
        self.u = self.u * self.momentum.factor + gradient.float()
        added = self.u * self.momentum.factor + gradient.float() if self.momentum.is_nesterov else self.u
        self.v = self.v + added
        return added

    def send(self, indices: torch.Tensor) -> torch.Tensor:
        values = self.v[indices.long()].clone()
        self.v[indices.long()] = 0
        self.u[indices.long()] *= min(1.0, (indices.numel() / NUMEL / 0.03) ** 0.5)
        return values


def room_for(gradient: torch.Tensor) -> torch.Tensor:
    return gradient if gradient.dtype == torch.float32 else torch.empty(NUMEL)


@pytest.fixture(params=["loops", "torch"])
def operations(request):
    with torch_operations() if request.param == "torch" else contextlib.nullcontext():
        yield


@pytest.mark.usefixtures("operations")
@pytest.mark.parametrize("is_nesterov", [False, True])
@pytest.mark.parametrize(("dtype", "k"), [*((dtype, 30) for dtype in DTYPES), (torch.float32, 150)], ids=str)
def test_steps_do_what_the_equations_say(dtype, k, is_nesterov, threads):
    momentum = Momentum(0.9, is_nesterov)
    expected, velocity = Reference(momentum), Velocity.zeros(NUMEL, momentum)
    memory = Memory(NUMEL, velocity=velocity)
    for step in range(12):
        gradient = gaussian(NUMEL, seed=step).to(dtype)
        before_u, before_v = expected.u.clone(), expected.v.clone()
        added = expected.add(gradient)
        assert same_bits(velocity.added_by(gradient), added)
        undo = room_for(gradient)
        if step % 4 == 3:  # indices that another rank chose
            memory.accumulate(gradient, undo=undo)
            indices = select_topk(gaussian(NUMEL, seed=100 + step), k)
            selection = memory.take(indices)
        elif step % 4 == 2:  # a step in which gain curves are taken
            of_added, of_sum = memory.accumulate_with_gain_curves(gradient, undo=undo)
            assert of_added.energy == pytest.approx(float(added.double().square().sum()))
            assert of_sum.energy == pytest.approx(float(expected.v.double().square().sum()))
            indices, selection = select_topk(expected.v, k), memory.select(None, k)
        else:
            indices, selection = select_topk(expected.v, k), memory.select(gradient, k, undo=undo)
        assert torch.equal(selection.indices, indices)
        assert same_bits(selection.values, expected.send(indices))
        assert same_bits(memory.residual, expected.v)
        assert same_bits(velocity.values, expected.u)
        assert same_bits(undo, before_v)
        assert same_bits(velocity.before, before_u)


@pytest.mark.usefixtures("operations")
def test_peeking_clears_nothing():
    velocity = Velocity.zeros(NUMEL, Momentum(0.9))
    memory = Memory(NUMEL, velocity=velocity)
    gradient = gaussian(NUMEL)
    memory.peek(gradient, K, undo=gradient)
    assert same_bits(velocity.values, gaussian(NUMEL))
    assert same_bits(memory.residual, gaussian(NUMEL))


@pytest.mark.usefixtures("operations")
def test_a_miss_of_the_threshold_advances_the_velocity_once():
    velocity = Velocity.zeros(NUMEL, Momentum(0.5))
    memory = Memory(NUMEL, velocity=velocity)
    for scale in (1.0, 1.0, 1e-3):  # the remembered threshold is far too high for the last
        gradient = torch.full((NUMEL,), scale)
        memory.residual.zero_()
        velocity.values.zero_()
        memory.select(gradient, K, undo=gradient)
        assert same_bits(velocity.values[K:], torch.full((NUMEL - K,), scale))


def test_another_factor_counts_from_the_next_step_on():
    momentum = Momentum(0.9)
    velocity = Velocity.zeros(4, momentum)
    part = velocity.part(1, 3)
    part.advance(torch.ones(2))
    momentum.factor = 0.5
    assert part.advance(torch.ones(2)).tolist() == [1.5, 1.5]
    assert velocity.values.tolist() == [0, 1.5, 1.5, 0]


def test_a_gradient_without_room_for_an_undo_is_rejected():
    memory = Memory(4, velocity=Velocity.zeros(4, Momentum(0.9)))
    with pytest.raises(ValueError, match="needs room for the residual"):
        memory.select(torch.ones(4), 1)
