import pytest
import torch

from headway.kernels import Memory
from headway.kernels.threshold import Threshold
from tests.kernels.data import gaussian


def test_no_guess_without_a_step_of_similar_k():
    threshold = Threshold()
    assert threshold.guess(100) is None
    assert threshold.guess(0) is None
    threshold.observe(1 << 30, 100)
    assert threshold.guess(100) is not None
    assert threshold.guess(103) is not None
    assert threshold.guess(120) is None


def test_the_guess_follows_a_trend_from_below():
    threshold = Threshold()
    for step in range(40):
        key = (1 << 30) + step * 100_000
        guess = threshold.guess(100)
        if step > 25:
            assert key - 200_000 < guess <= key
        threshold.observe(key, 100)


@pytest.mark.parametrize(
    "disturbance",
    [torch.full((100_000,), torch.nan), torch.zeros(100_000), gaussian(100_000) * 1024],
    ids=["overflow", "zeros", "scale"],
)
def test_recovers_quickly_from_one_outlier_step(disturbance, monkeypatch):
    """A GradScaler causes such steps routinely."""
    misses = []
    original = Memory._pick_in_one_pass

    def recorded(self, *args):
        picked = original(self, *args)
        misses.append(picked is None)
        return picked

    monkeypatch.setattr(Memory, "_pick_in_one_pass", recorded)
    memory = Memory(100_000)
    for step in range(25):
        memory.select(gaussian(100_000, seed=step), 1000)
    memory.select(disturbance, 1000)
    if disturbance.isnan().any():
        memory.residual.copy_(gaussian(100_000, seed=24) * 3)
    misses.clear()
    for step in range(30):
        if disturbance.abs().max() > 100:
            memory.residual.clamp_(-3, 3)
        memory.select(gaussian(100_000, seed=100 + step), 1000)
    assert sum(misses) <= 6, misses
