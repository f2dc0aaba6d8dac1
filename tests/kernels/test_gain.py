import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from headway.kernels import GAIN_RATIOS, device, gain_curve
from tests.kernels.data import gaussian, heavy_tailed, mostly_zero


def _true_gains(x):
    squares = np.sort(x.double().numpy() ** 2)[::-1]
    wanted = np.maximum(1, np.ceil(GAIN_RATIOS * x.numel())).astype(int)
    return np.cumsum(squares)[wanted - 1] / squares.sum()


@pytest.mark.parametrize("make", [gaussian, heavy_tailed, mostly_zero])
@pytest.mark.parametrize("numel", [100, 3000, 300_000])
@pytest.mark.parametrize("scale", [1.0, 1e-12, 3e15])
def test_error_is_at_most_one_percent_everywhere(make, numel, scale, threads):
    x = make(numel) * scale
    curve = gain_curve(x)
    np.testing.assert_allclose(curve.gains, _true_gains(x), rtol=0.01)
    assert curve.energy == pytest.approx(float(x.double().square().sum()), rel=1e-9)


def test_curve_rises_to_one():
    curve = gain_curve(heavy_tailed(50_000))
    assert (np.diff(curve.gains) >= 0).all()
    assert curve.gains[-1] == 1.0
    assert (curve.gains > 0).all()


def test_all_zero_has_gain_one():
    assert (gain_curve(torch.zeros(1000)).gains == 1).all()


def test_entries_too_small_for_the_histogram_keep_a_positive_gain():
    assert (gain_curve(torch.full((1000,), 1e-41)).gains >= GAIN_RATIOS * 0.99).all()


def test_inf_and_nan_do_not_count():
    x = gaussian(10_000)
    expected = gain_curve(x).energy
    x = torch.cat([x, torch.tensor([np.inf, -np.inf, np.nan])])
    curve = gain_curve(x)
    assert curve.energy == pytest.approx(expected, rel=1e-9)
    assert np.isfinite(curve.gains).all()


def test_between_grid_points():
    curve = gain_curve(gaussian(100_000))
    assert curve.at(float(GAIN_RATIOS[7])) == curve.gains[7]
    assert curve.gains[7] < curve.at(float(GAIN_RATIOS[7]) * 1.1) < curve.gains[8]
    with pytest.raises(ValueError, match="ratio is 2"):
        curve.at(2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_torch_operations_agree(dtype, monkeypatch):
    """The path of accelerators counts into the same bins, chunk by chunk."""
    monkeypatch.setattr(device, "CHUNK", 1000)
    x = torch.cat([heavy_tailed(20_001), torch.tensor([np.inf, np.nan])]).to(dtype)
    curve, expected = device.gain_curve(x), gain_curve(x)
    np.testing.assert_allclose(curve.gains, expected.gains, rtol=1e-12)
    assert curve.energy == pytest.approx(expected.energy, rel=1e-12)
    assert (device.gain_curve(torch.zeros(10)).gains == 1).all()


class LargestTensor(TorchDispatchMode):
    """Notes the largest tensor that operations make, other than views of what is given."""

    def __init__(self, given: torch.Tensor) -> None:
        super().__init__()
        self._given = given.untyped_storage().data_ptr()
        self.num_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() != self._given:
                self.num_bytes = max(self.num_bytes, each.nbytes)
        return made


def test_torch_operations_take_room_for_a_chunk(monkeypatch):
    """And not for a copy of the gradient in float64, its squares, their order and their sums."""
    monkeypatch.setattr(device, "CHUNK", 1 << 14)
    x = heavy_tailed(1 << 18)
    with LargestTensor(x) as largest:
        device.gain_curve(x)
    assert largest.num_bytes <= 8 * (1 << 15)  # a chunk in float64, or the bins
