"""How much of a tensor stochastic rounding preserves, known before anything is rounded.

A value x between two grid points, the share f of their distance d above the lower one, is rounded up with probability
f: the expected squared error is d² f (1 - f). With a scale for each block (see ``quantizers``) d = max|x| / Q, so that
a few large entries make the error of all the others large.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from headway.kernels import device
from headway.kernels._jit import kernel, reassociating, widened
from headway.kernels._threads import chunks, run
from headway.kernels.arrays import SCALE_BLOCK as BLOCK
from headway.kernels.arrays import SMALLEST_NORMAL, flat_raw, uses_torch
from headway.kernels.blocks import largest_magnitude
from headway.kernels.feedback import energy_of
from headway.kernels.quantizers import check_bits, grid_zero, half_range


def rounding_gain(x: Tensor, bits: int) -> float:
    """Return the expected gain of ``quantize(x, bits)`` with scales: at most 1, below 0 for an error larger than x.

        gain = 1 - E|C(x) - x|² / |x|²

    Blocks with Inf or NaN in them count on neither side; the gain is NaN if only such blocks hold anything.

    **Cost**: one read of ``x``.

    >>> import torch
    >>> rounding_gain(torch.tensor([7.0, 3.5, 0.0, 0.0]), bits=4)  # the grid is -7, -6, ..., 7
    0.9959183673469387
    """
    check_bits(bits)
    if uses_torch(x):
        error, energy, num_left_out = device.rounding_error(x, bits)
    else:
        flat = flat_raw(x)
        parts = run(lambda _, part: _error_and_energy(flat[part], bits), chunks(flat.size))
        error, energy, num_left_out = (math.fsum(part[place] for part in parts) for place in range(3))
    if energy == 0:
        return math.nan if num_left_out else 1.0
    return 1 - error / energy


@reassociating
def _spread(block: Any, inverse: Any, shift: Any) -> Any:
    """Return the sum of f (1 - f)."""
    total = np.float32(0)
    for i in range(block.size):
        level = block[i] * inverse + shift
        rest = level - np.floor(level)
        total += rest * (np.float32(1) - rest)
    return total


@kernel
def _error_and_energy(x: Any, bits: int) -> tuple[float, float, int]:
    """Return E|C(x) - x|² and |x|² of the finite blocks, and the number of the others."""
    buffer = np.empty(BLOCK, np.float32)
    levels, shift = half_range(bits), grid_zero(bits) - np.floor(grid_zero(bits))
    error, energy, num_left_out = 0.0, 0.0, 0
    for at in range(0, x.size, BLOCK):
        block = widened(x[at : at + BLOCK], buffer)
        scale = largest_magnitude(block)
        if scale != scale:
            num_left_out += 1
            continue
        energy += energy_of(block)
        if scale >= SMALLEST_NORMAL * levels:
            distance = np.float64(scale) / levels
            error += distance * distance * _spread(block, levels / scale, shift)
        else:  # sent as zeros
            error += energy_of(block)
    return error, energy, num_left_out
