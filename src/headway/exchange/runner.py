"""Runs the exchange of one bucket, undoes it if the step is rejected, applies momentum, and leaves a record."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.compress import BucketMemory
from headway.exchange.base import Job, exchange_of
from headway.exchange.buffers import BufferAverager
from headway.exchange.channel import ExecutorChannel
from headway.exchange.control import Controller, GainCurves, StepPlan
from headway.exchange.curves import take_curves
from headway.exchange.momentum import apply_common
from headway.exchange.plan import Plan
from headway.exchange.records import ExchangeRecord, History, dense_bytes
from headway.exchange.step_outcome import StepOutcome
from headway.exchange.unused import parts_used, unused_kept
from headway.kernels import Velocity

_COMPRESSIBLE = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which bucket of which step is exchanged, and when it came."""

    step: int
    bucket: int
    is_last: bool
    """Whether the step has no exchange after this one."""
    submitted_at: float


class ExchangeRunner:
    """Runs exchanges one at a time. Not thread-safe.

    Args:
        channel: Runs the collectives.
        controller: Takes in the records, with gain curves where they are wanted.
        history: Collects the records.
        seed: The seed of all random numbers, the same on all ranks.
        buffers: Averages the model's buffers along with its gradients.
        may_skip_parameters: Whether a step may leave parameters unused: nothing is sent for them then.
    """

    def __init__(
        self,
        channel: ExecutorChannel,
        controller: Controller,
        history: History,
        seed: int,
        buffers: BufferAverager,
        *,
        may_skip_parameters: bool,
    ) -> None:
        self._channel = channel
        self.controller = controller
        self._history = history
        self._seed = seed
        self._buffers = buffers
        self._may_skip_parameters = may_skip_parameters
        self._outcome = StepOutcome()
        self._advanced: list[Velocity] = []
        """Common velocities that have advanced in this step."""
        self._is_finite = True
        """Whether all averages of this step are, to which momentum was to be applied."""
        self.num_under_way = 0
        """Plain sums that have been started and not waited for."""

    @property
    def was_skipped(self) -> bool:
        """Whether an exchange of the last step was rejected."""
        return self._outcome.was_skipped

    def run(self, gradient: Tensor, memory: BucketMemory, order: StepPlan, place: Place, *, saves: bool) -> None:
        """Replace a gradient by its average, or with momentum by the update.

        Args:
            gradient: Flat.
            memory: The memory of the bucket.
            order: How to average it.
            place: Where in the run it is.
            saves: Whether to save memories that a later bucket of the same step may want back to the bit.
        """
        start = time.perf_counter()
        sends_any_type = not order.plan.keeps_memory and not memory.is_used
        narrow = gradient if gradient.dtype in _COMPRESSIBLE or sends_any_type else gradient.float()
        job = Job(step=place.step, bucket=place.bucket, gradient=narrow, memory=memory, seed=self._seed)
        may_be_undone = self._outcome.is_skipped or not place.is_last
        is_saved = saves and may_be_undone and memory.is_used
        if is_saved:
            self._outcome.save(memory)
        with self._unused_kept(narrow, memory):
            curves = take_curves(job, order.code_bits) if order.takes_curves else None
            gain = exchange_of(order.plan).run(job, self._buffers.channel_for(self._channel))
        self._outcome.add(job, is_saved=is_saved)
        if place.is_last:
            self._outcome.settle()
        if narrow is not gradient:
            gradient.copy_(narrow)
        self._apply_momentum(gradient, memory, is_last=place.is_last)
        self._note(order.plan, place, gradient, gain, start, curves)

    def start_plain(
        self, gradient: Tensor, memory: BucketMemory | None, plan: Plan, place: Place
    ) -> Callable[[], None]:
        """Start what DDP would do without a hook, while more buckets come; return a function that waits for it."""
        start = time.perf_counter()
        wait = self._channel.start_plain_sum(gradient.mul_(1 / self._channel.num_ranks))
        self.num_under_way += 1

        def finish() -> None:
            wait()
            self._note(plan, place, gradient, 1.0, start)
            self.num_under_way -= 1
            if memory is not None:
                self._apply_momentum(gradient, memory, is_last=place.is_last)

        return finish

    def _unused_kept(self, gradient: Tensor, memory: BucketMemory) -> AbstractContextManager[None]:
        return unused_kept(gradient, memory) if self._may_skip_parameters and memory.is_used else nullcontext()

    def _apply_momentum(self, average: Tensor, memory: BucketMemory, *, is_last: bool) -> None:
        """Apply momentum to an average of gradients; where there are residuals, it is in them already.

        If any bucket of a step is not finite, a loss scaler skips all of it: no velocity has advanced then.
        """
        if memory.velocity is not None and not memory.is_used:
            every = [(0, average.numel())]
            for start, stop in parts_used(average, memory.shape) if self._may_skip_parameters else every:
                velocity = memory.velocity.part(start, stop)
                has_advanced = apply_common(average[start:stop], velocity)
                self._is_finite &= has_advanced
                self._advanced += [velocity] * has_advanced
        if is_last:
            for velocity in () if self._is_finite else self._advanced:
                velocity.restore()
            self._advanced, self._is_finite = [], True

    def _note(
        self,
        plan: Plan,
        place: Place,
        gradient: Tensor,
        gain: float,
        start: float,
        curves: GainCurves | None = None,
    ) -> None:
        meter = self._channel.read_meter()
        assert meter.largest is not None
        record = ExchangeRecord(
            step=place.step,
            bucket=place.bucket,
            exchange=plan.exchange,
            algorithm=meter.algorithm,
            ratio=plan.sent_ratio,
            wire_bytes=meter.wire_bytes,
            dense_bytes=dense_bytes(gradient.nbytes, self._channel.num_ranks),
            rounds=meter.latencies,
            largest=meter.largest,
            was_alone=self.num_under_way == 0,
            compress_s=time.perf_counter() - start - meter.transfer_s,
            wait_s=start - place.submitted_at,
            transfer_s=meter.transfer_s,
            gain=gain,
        )
        self._history.add(record)
        self.controller.observe(record, curves)
