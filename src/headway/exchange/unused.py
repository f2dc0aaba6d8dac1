"""Parameters that a step does not use: their residuals wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from headway.compress import BucketMemory

_NUM_LOOKED_AT = 64
"""Entries that show at once, nearly always, that a gradient is not zero."""


@contextmanager
def unused_kept(gradient: Tensor, memory: BucketMemory) -> Iterator[None]:
    """Keep the residuals of parameters without a gradient on this rank out of an exchange.

    DDP applies no average to a parameter that no rank has used, so whatever was sent for it would be lost. As every
    rank sends nothing for the parameters that it has not used itself, nothing at all is sent for such a one, and ranks
    need not tell each other.

    **Cost**: a look at the first entries of every parameter; those that begin with zeros are read, and the residuals
    of those that are zero are copied twice.

    Args:
        gradient: The gradient of the bucket, flat.
        memory: The memory of the bucket.
    """
    pairs = zip(memory.shape.split(gradient), memory.shape.split(memory.residual), strict=True)
    unused = [residual for part, residual in pairs if _is_zero(part)]
    kept = [residual.clone() for residual in unused]
    for residual in unused:
        residual.zero_()
    try:
        yield
    finally:
        for residual, before in zip(unused, kept, strict=True):
            residual.add_(before)  # to 0, or to what a narrow type could not hold


def _is_zero(part: Tensor) -> bool:
    return not bool(part[:_NUM_LOOKED_AT].any()) and not bool(part.any())
