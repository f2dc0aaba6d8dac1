"""Averaging values at indices that all ranks know: the payload of the all-reduce does not grow with N."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.compress import gain_of
from headway.exchange.base import Channel, Job
from headway.exchange.narrowing import fit, narrow
from headway.exchange.plan import Plan
from headway.kernels import Selection, ValueFormat, scatter_add

DTYPE_OF: dict[ValueFormat, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16}
NUM_FLAGS = 2
"""Entries after the values, 4 bytes or more: the first is NaN if any rank has Inf or NaN at any index."""


def payload_bytes(k: int, values: ValueFormat) -> int:
    """Return the payload of the all-reduce of k values."""
    return (k + NUM_FLAGS) * DTYPE_OF[values].itemsize


def average_at(job: Job, indices: Tensor, channel: Channel, plan: Plan, *, has_nonfinite: bool) -> float:
    """Take G at the indices on every rank, add up, and replace the gradient by the average; return this rank's gain.

    An Inf or NaN at whatever index of a rank must reach all of them, or a GradScaler would not skip the step: a flag
    that travels with the values rejects the job everywhere.
    """
    memory = job.memory.whole
    selection = memory.take(indices)
    payload = _payload_of(selection.values, channel.num_ranks, plan.values, has_nonfinite)
    lost = _keep_error(payload, selection, channel.num_ranks, memory.residual)
    total = channel.all_reduce(payload, plan.algorithm)
    if bool(total[-NUM_FLAGS].isnan()):
        return job.reject()
    average, excess = fit(total[:-NUM_FLAGS].to(torch.float32), job.gradient.dtype)
    if excess is not None:
        scatter_add(memory.residual, indices, excess)
    job.gradient.zero_()
    job.gradient.index_copy_(0, indices.to(torch.int64), average.to(job.gradient.dtype))
    return gain_of(selection.values, memory.residual, lost)


def _payload_of(taken: Tensor, num_ranks: int, values: ValueFormat, has_nonfinite: bool) -> Tensor:
    """Return the values divided by N and such that no sum of finite ones overflows, and the flag."""
    payload = torch.zeros(taken.numel() + NUM_FLAGS, dtype=DTYPE_OF[values], device=taken.device)
    payload[:-NUM_FLAGS] = narrow(taken / num_ranks, DTYPE_OF[values], num_ranks)
    if has_nonfinite:
        payload[-NUM_FLAGS] = torch.nan
    return payload


def _keep_error(payload: Tensor, selection: Selection, num_ranks: int, residual: Tensor) -> Tensor | None:
    """Put back what rounding and the limit took away, and return it."""
    if payload.dtype == torch.float32:
        return None
    error = selection.values - payload[:-NUM_FLAGS].to(torch.float32) * num_ranks
    scatter_add(residual, selection.indices, error.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0))
    return error
