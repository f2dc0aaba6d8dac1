"""How fast exchanges compute on this machine: each is timed without a network."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headway.compress import BucketMemory, Shape, wanted_entries
from headway.exchange.base import Job, exchange_of
from headway.exchange.plan import Plan

_SMALL, _LARGE = 1 << 16, 1 << 20
_FEW, _MANY = 0.01, 0.1
_NUM_TENSORS = 8
"""The tensors of the bucket that is timed, for exchanges that go tensor by tensor."""
_NUM_RUNS = 2
_FEW_MESSAGES, _MOST_MESSAGES = 4, 16
"""More messages are not timed: the time of each further one is added."""


@dataclass(frozen=True, kw_only=True)
class ComputeSpeed:
    """The time of compressing and decompressing: t = call + entries a + entries sent b."""

    call_s: float = 0.0
    entry_s: float = 0.0
    sent_s: float = 0.0

    def seconds(self, numel: int, num_sent: int) -> float:
        """Return the time for a bucket."""
        return self.call_s + numel * self.entry_s + num_sent * self.sent_s


@dataclass
class NullChannel:
    """A channel without a network, as if every rank sent what this one sends."""

    num_ranks: int
    rank: int = 0

    def all_reduce(self, tensor: Tensor, algorithm: str) -> Tensor:
        del algorithm
        return tensor

    def all_gather(self, message: Tensor, algorithm: str) -> Tensor:
        del algorithm
        return message.expand(self.num_ranks, *message.shape)

    def broadcast(self, tensor: Tensor, root: int, algorithm: str) -> Tensor:
        del root, algorithm
        return tensor


def measure_speed(plan: Plan, num_ranks: int) -> ComputeSpeed:
    """Time the computing of an exchange on this rank, whatever its ratio and algorithm; takes some 30 ms."""
    small_s = _typical_s(replace(plan, ratio=_FEW), _SMALL, num_ranks)
    large_s = _typical_s(replace(plan, ratio=_FEW), _LARGE, num_ranks)
    sent_s = 0.0
    if plan.description.uses_ratio:
        more = wanted_entries(_MANY, _LARGE) - wanted_entries(_FEW, _LARGE)
        sent_s = max(_typical_s(replace(plan, ratio=_MANY), _LARGE, num_ranks) - large_s, 0.0) / more
    more = wanted_entries(_FEW, _LARGE) - wanted_entries(_FEW, _SMALL)
    entry_s = max(large_s - small_s - more * sent_s, 0.0) / (_LARGE - _SMALL)
    call_s = max(small_s - _SMALL * entry_s - wanted_entries(_FEW, _SMALL) * sent_s, 0.0)
    return ComputeSpeed(call_s=call_s, entry_s=entry_s, sent_s=sent_s)


def _typical_s(plan: Plan, numel: int, num_ranks: int) -> float:
    """Return the time of a run; with many ranks, as if each message took as long as the first ones."""
    if num_ranks <= _MOST_MESSAGES:
        return _measured_s(plan, numel, num_ranks)
    few_s, many_s = (_measured_s(plan, numel, number) for number in (_FEW_MESSAGES, _MOST_MESSAGES))
    message_s = max(many_s - few_s, 0.0) / (_MOST_MESSAGES - _FEW_MESSAGES)
    return many_s + (num_ranks - _MOST_MESSAGES) * message_s


def _measured_s(plan: Plan, numel: int, num_ranks: int) -> float:
    """Return the median of some runs; the first two, without a remembered threshold and in new memory, do not count."""
    memory = BucketMemory(Shape((numel // _NUM_TENSORS,) * _NUM_TENSORS))
    gradient = torch.randn(numel, generator=torch.Generator().manual_seed(0))
    exchange, channel = exchange_of(plan), NullChannel(num_ranks)
    times_s = []
    for step in range(2 + _NUM_RUNS):
        job = Job(step=step * num_ranks, bucket=0, gradient=gradient.clone(), memory=memory)
        start = time.perf_counter()
        exchange.run(job, channel)
        times_s.append(time.perf_counter() - start)
    return statistics.median(times_s[2:])
