import numba
import numpy as np
import pytest
import torch

from headway.kernels import device, noise_key
from headway.kernels.arrays import SCALE_BLOCK as BLOCK
from headway.kernels.noise import block_key, unit


@numba.njit
def _fill(key, out):
    for i in range(out.size):
        mixed = block_key(key, i // BLOCK)
        out[i] = unit(np.uint32(mixed), np.uint32(mixed >> np.uint64(32)), i % BLOCK)


def _noise(seed, step, rank, numel=1 << 17):
    out = np.empty(numel, np.float32)
    _fill(np.uint64(noise_key(seed, step, rank)), out)
    return out


def test_uniform_on_the_unit_interval():
    u = _noise(0, 0, 0, 1 << 20)
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 4 / np.sqrt(12 * u.size)
    counts = np.bincount((u * 256).astype(int), minlength=256)
    chi_square = ((counts - u.size / 256) ** 2 / (u.size / 256)).sum()
    assert chi_square < 255 + 5 * np.sqrt(2 * 255)


@pytest.mark.parametrize("other", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (2**40, 0, 0)])
def test_other_seed_step_or_rank_is_uncorrelated(other):
    a, b = _noise(0, 0, 0), _noise(*other)
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(a.size)


@pytest.mark.parametrize("lag", [1, 2, 7, BLOCK, BLOCK + 1])
def test_neighbours_are_uncorrelated(lag):
    u = _noise(3, 1, 4)
    assert abs(np.corrcoef(u[:-lag], u[lag:])[0, 1]) < 5 / np.sqrt(u.size)


def test_repeatable():
    assert (_noise(7, 8, 9) == _noise(7, 8, 9)).all()


def test_torch_operations_give_the_same():
    blocks = torch.empty(5, BLOCK)
    ours = _noise(1, 2, 3, blocks.numel())
    np.testing.assert_array_equal(device._units(noise_key(1, 2, 3), blocks).flatten().numpy(), ours)
