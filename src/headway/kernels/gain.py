"""The gain curve: the share of the energy that each ratio would keep, from one histogram of magnitudes.

    gain(c) = |top-k of G|^2 / |G|^2,   k = max(1, ceil(c * numel))

A bin of the histogram (see ``radix``) holds magnitudes in [a, b) with b <= a(1+w), w = 1/128. Taking the square of each
as the harmonic mean of the squared ends, 2 a² b² / (a² + b²), has an error of at most w = 0.78% for each entry, and so
for every sum of them: no assumption on the distribution is needed. (Entries below 2^-126 are outside that bound; their
curve is at least that of equal entries, k / numel.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from headway.kernels import device, radix
from headway.kernels._threads import chunks, run
from headway.kernels.arrays import flat_raw, uses_torch
from headway.kernels.feedback import count_with_energy
from headway.kernels.radix import INF_BIN, Counts

GAIN_RATIOS: npt.NDArray[np.float64] = np.logspace(-4, 0, 41)
"""The grid of ratios: ten per decade from 1e-4 to 1."""
GAIN_RATIOS.flags.writeable = False


def _squares_of_bins() -> npt.NDArray[np.float64]:
    edges = (np.arange(INF_BIN + 1, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)
    low, high = edges[:-1] ** 2, edges[1:] ** 2
    high[-1] = low[-1] * (1 + 2**-7)  # the last finite bin ends at Inf
    return 2 * low * high / np.maximum(low + high, np.finfo(np.float64).tiny)


_SQUARES = _squares_of_bins()


@dataclass(frozen=True, kw_only=True)
class GainCurve:
    """gain(c) on the grid ``GAIN_RATIOS``, and the energy ``|G|^2`` of the finite entries it refers to."""

    gains: npt.NDArray[np.float64]
    energy: float

    def at(self, ratio: float) -> float:
        """Return gain(ratio), interpolated between the ratios of the grid on a log scale; below 1e-4, that of 1e-4."""
        if not 0 < ratio <= 1:
            raise ValueError(f"ratio is {ratio}, but must be in (0, 1]")
        return float(np.interp(np.log(ratio), np.log(GAIN_RATIOS), self.gains))


def gain_curve(x: Tensor) -> GainCurve:
    """Return the gain curve of a tensor.

    **Cost**: one read of ``x``. **Error**: relative, at most 0.8% at every point; the energy is exact to rounding.

    >>> import torch
    >>> curve = gain_curve(torch.tensor([3.0, 0.0, 4.0, 0.0]))
    >>> curve.energy, curve.at(1.0)
    (25.0, 1.0)
    """
    if uses_torch(x):
        return device.gain_curve(x)
    flat = flat_raw(x)
    parts = chunks(flat.size)
    counts = [radix.new_counts() for _ in parts]
    energies = run(lambda number, part: count_with_energy(flat[part], counts[number]), parts)
    return curve_from_counts(radix.bin_totals(radix.total(counts)), flat.size, sum(energies))


def entries_at_ratios(numel: int) -> npt.NDArray[np.int64]:
    """Return k for each ratio of the grid."""
    return np.maximum(1, np.ceil(GAIN_RATIOS * numel)).astype(np.int64)


def curve_from_counts(counts: Counts, numel: int, energy: float) -> GainCurve:
    """Return the curve, given the number of entries in each bin of level one and the exact energy."""
    finite = counts[:INF_BIN][::-1]
    squares = _SQUARES[::-1]
    if energy == 0:
        return GainCurve(gains=np.ones_like(GAIN_RATIOS), energy=0.0)
    num_above = np.concatenate([[0], np.cumsum(finite)])
    energy_above = np.concatenate([[0.0], np.cumsum(finite * squares)])
    k = entries_at_ratios(numel)
    # The largest k entries hold at least k / numel of the energy: a bound for entries too small for the histogram.
    gains = np.clip(np.interp(k, num_above, energy_above) / energy, k / max(numel, 1), 1.0)
    gains[-1] = 1.0
    return GainCurve(gains=gains, energy=energy)
