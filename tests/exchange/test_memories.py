"""Residuals of all buckets: they follow the scale of the loss, and move with their parameters."""

from __future__ import annotations

import math

import pytest
import torch

from headway.exchange import Averager, BucketLayout, Memories

LAYOUT = (BucketLayout(("a", "b"), (300, 200)), BucketLayout(("c",), (500,)))


@pytest.mark.parametrize("factor", [0.5, 2.0, 65536.0])
def test_residuals_and_thresholds_follow_the_scale_of_the_loss(factor):
    """The next selection is that of a memory which has had the new scale all along, found in one pass."""
    scaled, reference = Memories(LAYOUT), Memories(LAYOUT)
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        gradient = torch.randn(500, generator=generator)
        scaled.bucket(1, needed=True).whole.select(gradient.clone(), 10)
        reference.bucket(1, needed=True).whole.select(gradient * factor, 10)
    scaled.rescale(factor)
    assert torch.equal(scaled.residual, reference.residual)
    ours, theirs = (each.bucket(1, needed=True).whole.threshold for each in (scaled, reference))
    assert ours.guess(10) == pytest.approx(theirs.guess(10), abs=2)


def averager_with_residual(loss_scale: float | None) -> Averager:
    """In a group of one rank: only what residuals come to matters."""
    averager = Averager.__new__(Averager)
    averager.memories, averager.loss_scale = Memories(LAYOUT, torch.ones(1000)), loss_scale
    return averager


@pytest.mark.parametrize(
    ("before", "now", "factor", "known"),
    [
        (None, 1024.0, 1, 1024.0),
        (512.0, 1024.0, 2, 1024.0),
        (512.0, None, 1, 512.0),
        (512.0, 0.0, 1, 512.0),
        (512.0, math.inf, 1, 512.0),
        (512.0, math.nan, 1, 512.0),
        (None, math.nan, 1, None),
    ],
)
def test_residuals_are_rescaled_only_where_both_scales_are_known(before, now, factor, known):
    """A state of a run without a scaler, or of an older version, does not say in which units it is."""
    averager = averager_with_residual(before)
    averager._follow_loss_scale(now)
    assert torch.equal(averager.memories.residual, torch.full((1000,), float(factor)))
    assert averager.loss_scale == known


def test_entries_that_overflow_in_the_new_scale_are_dropped():
    memories = Memories(LAYOUT, torch.tensor([3e38, -3e38] + [1.0] * 998))
    memories.rescale(2.0)
    assert torch.equal(memories.residual, torch.tensor([0.0, 0.0] + [2.0] * 998))


def test_without_residuals_there_is_nothing_to_rescale():
    memories = Memories(LAYOUT)
    memories.rescale(2.0)
    assert memories.residual is None


def test_a_residual_moves_with_its_parameter():
    memories = Memories(LAYOUT, torch.arange(1000.0))
    other = (BucketLayout(("c", "b"), (500, 200)), BucketLayout(("a",), (300,)))
    moved = memories.regrouped(other)
    assert moved.layout == other
    a, b, c = torch.arange(1000.0).split([300, 200, 500])
    assert torch.equal(moved.residual, torch.cat([c, b, a]))
