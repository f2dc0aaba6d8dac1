"""Averaging values at indices that all ranks know: the payload of the all-reduce does not grow with N."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.compress import gain_of
from headway.exchange.base import Channel, Job
from headway.exchange.plan import Plan
from headway.kernels import Selection, ValueFormat, scatter_add

DTYPE_OF: dict[ValueFormat, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16}
NUM_FLAGS = 2
"""Entries after the values, 4 bytes or more: the first is NaN if any rank has Inf or NaN at other indices."""


def payload_bytes(k: int, values: ValueFormat) -> int:
    """Return the payload of the all-reduce of k values."""
    return (k + NUM_FLAGS) * DTYPE_OF[values].itemsize


def average_at(job: Job, indices: Tensor, channel: Channel, plan: Plan, *, has_nonfinite: bool) -> float:
    """Take G at the indices on every rank, add up, and replace the gradient by the average; return this rank's gain.

    An Inf or NaN at other indices must reach the average too, or a GradScaler would not skip the step: a flag that
    travels with the values turns an entry of the average into NaN.
    """
    selection = job.memory.whole.take(indices)
    payload = _payload_of(selection.values, channel.num_ranks, plan.values, has_nonfinite)
    _keep_error(payload, selection, channel.num_ranks, job.memory.residual)
    total = channel.all_reduce(payload, plan.algorithm)
    average = total[: indices.numel()].to(torch.float32)
    job.gradient.zero_()
    job.gradient.index_copy_(0, indices.to(torch.int64), average.to(job.gradient.dtype))
    if bool(total[indices.numel()].isnan()):
        job.gradient[0] = torch.nan
    return gain_of(selection.values, job.memory.residual)


def _payload_of(taken: Tensor, num_ranks: int, values: ValueFormat, has_nonfinite: bool) -> Tensor:
    """Return the values divided by N, so that no sum of finite ones overflows, and the flag."""
    payload = torch.zeros(taken.numel() + NUM_FLAGS, dtype=DTYPE_OF[values], device=taken.device)
    payload[:-NUM_FLAGS] = narrow(taken / num_ranks, DTYPE_OF[values])
    if has_nonfinite:
        payload[-NUM_FLAGS] = torch.nan
    return payload


def narrow(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to a narrower type; finite values stay finite.

    >>> narrow(torch.tensor([1e6, -torch.inf]), torch.float16)
    tensor([65504.,   -inf], dtype=torch.float16)
    """
    limit = torch.finfo(dtype).max
    return torch.where(x.isfinite(), x.clamp(-limit, limit), x).to(dtype)


def _keep_error(payload: Tensor, selection: Selection, num_ranks: int, residual: Tensor) -> None:
    """Put back what rounding took away."""
    if payload.dtype == torch.float32:
        return
    error = selection.values - payload[:-NUM_FLAGS].to(torch.float32) * num_ranks
    scatter_add(residual, selection.indices, error.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0))
