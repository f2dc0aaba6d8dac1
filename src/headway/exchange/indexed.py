"""Exchanges that add up values at indices which all ranks know: the reduced payload does not grow with N."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.compress import gain_of
from headway.exchange.base import Job
from headway.exchange.channel import Channel
from headway.kernels import Selection, ValueFormat

DTYPE_OF: dict[ValueFormat, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16}
NUM_FLAGS = 2
"""Entries behind the values, 4 bytes or more: the first is NaN if any rank has Inf or NaN at other indices."""


def payload_bytes(k: int, values: ValueFormat) -> int:
    """Return how many bytes the all-reduce of k values moves."""
    return (k + NUM_FLAGS) * DTYPE_OF[values].itemsize


def average_at(
    job: Job, indices: Tensor, channel: Channel, *, algorithm: str, values: ValueFormat, has_nonfinite: bool
) -> float:
    """Take G at the indices on every rank, add up, and replace the gradient by the average; return this rank's gain.

    An Inf or NaN that a rank has elsewhere must reach the average too, or a GradScaler would not skip the step: a
    flag that travels with the values turns an entry of the average into NaN.
    """
    selection = job.memory.whole.take(indices, value_format=values)
    total = channel.all_reduce(_payload_of(selection, values, has_nonfinite), algorithm)
    average = total[: indices.numel()].to(torch.float32).div_(channel.num_ranks)
    job.gradient.zero_()
    job.gradient.index_copy_(0, indices.to(torch.int64), average.to(job.gradient.dtype))
    if bool(total[indices.numel()].isnan()):
        job.gradient[0] = torch.nan
    return gain_of(selection.values, job.memory.residual)


def _payload_of(selection: Selection, values: ValueFormat, has_nonfinite: bool) -> Tensor:
    k, dtype = selection.indices.numel(), DTYPE_OF[values]
    payload = torch.zeros(k + NUM_FLAGS, dtype=dtype, device=selection.values.device)
    payload[:k] = selection.payload.view(dtype)[:k]
    if has_nonfinite:
        payload[k] = torch.nan
    return payload
