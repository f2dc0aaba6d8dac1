"""Parameters that a step does not use: their residuals wait."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from headway.compress import BucketMemory, Shape

_NUM_LOOKED_AT = 64
"""Entries that show at once, nearly always, that a gradient is not zero."""


@contextmanager
def unused_kept(gradient: Tensor, memory: BucketMemory) -> Iterator[None]:
    """Keep residuals and velocities of parameters without a gradient on this rank out of an exchange.

    DDP applies no average to a parameter that no rank has used, so whatever was sent for it would be lost. As every
    rank sends nothing for the parameters that it has not used itself, nothing at all is sent for such a one, and ranks
    need not tell each other.

    **Cost**: a look at the first entries of every parameter; those that begin with zeros are read, and the residuals
    of those that are zero are copied twice, and so are velocities.

    Args:
        gradient: The gradient of the bucket, flat.
        memory: The memory of the bucket.
    """
    is_unused = [is_zero(part) for part in memory.shape.split(gradient)]
    velocity = memory.velocity
    kept = [memory.residual] if velocity is None else [memory.residual, velocity.values]
    parts = [_those(memory.shape, flat, is_unused) for flat in kept]
    before = [[part.clone() for part in each] for each in parts]
    for part in itertools.chain(*parts):
        part.zero_()
    try:
        yield
    finally:
        for part, saved in zip(itertools.chain(*parts), itertools.chain(*before), strict=True):
            part.add_(saved)  # to 0, or to what a narrow type could not hold
        if velocity is not None:  # an undo after this must find what was kept
            for part, saved in zip(_those(memory.shape, velocity.before, is_unused), before[1], strict=True):
                part.copy_(saved)


def _those(shape: Shape, flat: Tensor, is_chosen: Sequence[bool]) -> list[Tensor]:
    return list(itertools.compress(shape.split(flat), is_chosen))


def parts_used(gradient: Tensor, shape: Shape) -> Iterator[tuple[int, int]]:
    """Yield where each parameter whose gradient is not zero begins and ends."""
    ends = list(itertools.accumulate(shape.numels, initial=0))
    for part, start, stop in zip(shape.split(gradient), ends, ends[1:], strict=False):
        if not is_zero(part):
            yield start, stop


def is_zero(part: Tensor) -> bool:
    """Return whether all entries are zero; a look at the first ones is mostly enough."""
    return not bool(part[:_NUM_LOOKED_AT].any()) and not bool(part.any())
