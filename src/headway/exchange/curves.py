"""Takes the gain curves of buckets: how much of a gradient each ratio, and each number of bits, would preserve."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headway.exchange.base import Job
from headway.exchange.control import CodeGain, GainCurves
from headway.kernels import gain_curve, rounding_gain


def _single(gradient: Tensor) -> Tensor:
    """Return a gradient in single precision or less, as kernels take it."""
    return gradient.float() if gradient.dtype == torch.float64 else gradient


def curves_of(gradient: Tensor, code_bits: Sequence[int]) -> GainCurves:
    """Return the gain curve of a gradient that has no residual, and the gains of codes."""
    gradient = _single(gradient)
    codes = tuple(CodeGain(bits, rounding_gain(gradient, bits)) for bits in code_bits)
    curve = gain_curve(gradient)
    return GainCurves(curve, curve, codes)


def take_curves(job: Job, code_bits: Sequence[int] = ()) -> GainCurves:
    """Return the gain curves of a bucket, and the gains of codes.

    Where there is a residual, the gradient is added to it in the same pass, and the exchange need not add it. With
    momentum correction, all of this is about what the residual gets, and not about the gradient alone.
    """
    gradient, velocity = _single(job.gradient), job.memory.velocity
    is_used = job.memory.is_used
    added = velocity.added_by(gradient) if velocity is not None and (code_bits or not is_used) else gradient
    if not is_used:
        return curves_of(added, code_bits)
    codes = tuple(CodeGain(bits, rounding_gain(added, bits)) for bits in code_bits)
    curves = job.memory.whole.accumulate_with_gain_curves(gradient, undo=job.undo.residual)
    job.undo.is_filled = True
    return GainCurves(*curves, codes)
