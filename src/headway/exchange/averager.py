"""Takes the buckets of a step in order, and averages them as the control loop says."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headway.compress import BucketMemory
from headway.exchange.buffers import BufferAverager
from headway.exchange.catalogue import is_plain
from headway.exchange.channel import ExecutorChannel
from headway.exchange.control import Controller, StepPlan
from headway.exchange.curves import curves_of
from headway.exchange.layout import BucketLayout, Layout, regroup
from headway.exchange.layout_tracker import LayoutTracker
from headway.exchange.memories import Memories
from headway.exchange.momentum import make_common
from headway.exchange.narrowing import fit
from headway.exchange.plan import Plan
from headway.exchange.records import History
from headway.exchange.runner import ExchangeRunner, Place
from headway.kernels import Momentum

FUSED = -1
"""The bucket number of a record about all buckets of a step."""
_EXACT = (torch.float32, torch.float64)
"""Sent in these types, nothing of a residual stays behind, to rounding."""


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """A bucket as DDP hands it over."""

    index: int
    gradient: Tensor
    """Flat; replaced by the average."""
    layout: BucketLayout
    is_last: bool
    on_done: Callable[[], None]
    loss_scale: float | None = None
    """What the loss, and so the gradient, was multiplied by, if it is known; the first bucket of a step tells it."""
    submitted_at: float = field(default_factory=time.perf_counter)


class Averager:
    """Averages step after step. Not thread-safe.

    The first step shows the buckets, so all of them wait for the last one; from then on buckets may go alone. DDP cuts
    its buckets anew after the first step of a process, or for a static graph after the second. Residuals belong to
    parameters: a step whose buckets differ from those of the memories is regrouped to the memories' buckets; if the
    other buckets stay, they are adopted.

    Args:
        channel: Runs the collectives.
        controller: Decides how each step is averaged.
        history: Collects the records.
        seed: The seed of all random numbers, the same on all ranks.
        buffers: Averages the model's buffers along with its gradients, if anything does.
        may_skip_parameters: Whether a step may leave parameters unused: nothing of their residuals is sent then.
        momentum: The momentum that the optimizer has handed over, if it has: see `headway.exchange.momentum`.
    """

    def __init__(
        self,
        channel: ExecutorChannel,
        controller: Controller,
        history: History,
        seed: int,
        *,
        buffers: BufferAverager | None = None,
        may_skip_parameters: bool = False,
        momentum: Momentum | None = None,
    ) -> None:
        self.channel = channel
        self.seed = seed
        self.step = 0
        self.loss_scale: float | None = None
        """The scale of the loss in whose units the residuals are, if it is known."""
        self.layout: Layout | None = None
        """The layout of the memories, or of the last step while there are none."""
        self.memories: Memories | None = None
        self.tracker = LayoutTracker()
        self.arrivals_s: list[float] | None = None
        """When the buckets of a step arrived on this rank, after the first one."""
        self.momentum = momentum
        self._buffers = buffers or BufferAverager(dict, channel)
        self._may_skip_parameters = may_skip_parameters
        self._runner = ExchangeRunner(
            channel, controller, history, seed, self._buffers, may_skip_parameters=may_skip_parameters
        )
        self._has_set_buckets = False
        self._taken: list[Bucket] = []
        self._waiting: list[Bucket] = []
        self._under_way: list[Callable[[], None]] = []

    def take(self, bucket: Bucket) -> None:
        """Average a bucket, or keep it until the last one of its step has come."""
        if not self._taken:
            self._follow_loss_scale(bucket.loss_scale)
            self._runner.controller.begin_step(self.step)
        order = self._order
        self._taken.append(bucket)
        if bucket.is_last:
            self._buffers.begin(self.step)
        if not self._can_go_alone(bucket, order):
            self._waiting.append(bucket)
        elif is_plain(order.plan) and not self._has_residual and not order.is_measured:
            self._under_way.append(self._start_plain(bucket, order.plan))
        else:
            memory = self._memory_of(bucket, order.plan)
            self._run(bucket.gradient, memory, order, bucket.index, bucket.submitted_at)
            bucket.on_done()
        if bucket.is_last:
            self._end_step(order.plan)

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self._runner.controller.current.plan

    @property
    def _order(self) -> StepPlan:
        """How to average the buckets of this step, on the link in force."""
        order = self._runner.controller.current
        self.channel.costs = order.costs
        return order

    def resume(
        self,
        step: int,
        layout: Layout | None,
        memories: Memories | None,
        arrivals_s: list[float] | None,
        *,
        settled: Layout | None = None,
        loss_scale: float | None = None,
    ) -> None:
        """Continue from the state of another run; without a layout, as if buckets were not known yet."""
        self.step, self.layout, self.memories, self.arrivals_s = step, layout, memories, arrivals_s
        self.loss_scale = loss_scale
        self.tracker.resume(settled)
        self._has_set_buckets = False

    def _follow_loss_scale(self, loss_scale: float | None) -> None:
        """Keep the residuals in the units of the gradients that come; 0, Inf and NaN leave nothing to compare with."""
        if loss_scale is None or not 0 < loss_scale < math.inf:
            return
        if self.loss_scale is not None and loss_scale != self.loss_scale and self.memories is not None:
            self.memories.rescale(loss_scale / self.loss_scale)
        self.loss_scale = loss_scale

    @property
    def _has_residual(self) -> bool:
        return self.memories is not None and self.memories.residual is not None

    def _can_go_alone(self, bucket: Bucket, order: StepPlan) -> bool:
        """Return whether a bucket can be averaged before the others have come; the same on all ranks."""
        if order.awaits_buckets or order.plan.fusion != "bucket" or self._waiting:
            return False
        if self.memories is not None and not self._has_set_buckets:
            return False
        if is_plain(order.plan) and not self._has_residual and self.momentum is None:
            return True
        if self.memories is None:
            return False
        same_layout = self.tracker.latest == self.memories.layout
        return same_layout and self.memories.layout[bucket.index : bucket.index + 1] == (bucket.layout,)

    def _memory_of(self, bucket: Bucket, plan: Plan) -> BucketMemory:
        has_memory = plan.keeps_memory or self._has_residual or self.momentum is not None
        if self.memories is None or not has_memory:  # then its layout need not be that of the memories
            return BucketMemory(bucket.layout.shape, device=bucket.gradient.device)
        return self.memories.bucket(bucket.index, needed=plan.keeps_memory)

    def _end_step(self, plan: Plan) -> None:
        """Wait for running exchanges, average the buckets that were kept, and learn how buckets are cut."""
        for finish in self._under_way:
            finish()
        self._under_way.clear()
        taken, self._taken = self._taken, []
        layout: Layout = tuple(bucket.layout for bucket in taken)
        if self._waiting:
            plan = self._run_waiting()
        elif self.memories is None:
            self.layout = layout
        self._learn_layout(layout)
        is_exact = all(bucket.gradient.dtype in _EXACT for bucket in taken)
        is_kept = plan.keeps_memory or self._may_skip_parameters or self._runner.was_skipped
        if self.memories is not None and is_exact and not is_kept:
            self._forget_residuals(self.memories)
        self._buffers.end(self.channel)
        self._runner.controller.end_step(taken[-1].submitted_at)
        self.step += 1

    def _forget_residuals(self, memories: Memories) -> None:
        """Free residuals of which all has been sent; from then on ranks share a velocity."""
        if memories.velocity is not None and memories.residual is not None:
            make_common(memories.velocity, self.channel)
        memories.forget()

    def _learn_layout(self, layout: Layout) -> None:
        """Take in the buckets of a step, and adopt other ones from the next step on if they have come to stay."""
        adopted = self.tracker.learn(layout, self.step + 1)
        if self.memories is not None and adopted is not None and adopted != self.memories.layout:
            self.memories = self.memories.regrouped(adopted)
            self.layout, self.arrivals_s = adopted, None
            self._has_set_buckets = False

    def _run_waiting(self) -> Plan:
        """Average the buckets that were kept, now that the step is complete; return the plan that was used."""
        waiting, self._waiting = self._waiting, []
        first = waiting[0].index  # those before it have the memories' layout, and have gone alone
        layout: Layout = tuple(bucket.layout for bucket in waiting)
        memories = self._prepare_memories(layout, waiting[0].gradient.device)
        target = memories.layout[first:]
        gradients = [bucket.gradient for bucket in waiting]
        regrouped = gradients if layout == target else regroup(gradients, layout, target)
        self._set_buckets(memories, waiting, regrouped)
        order = self._order
        self._run_together(regrouped, memories, order, waiting[-1].submitted_at, first)
        if regrouped is not gradients:
            for gradient, average in zip(gradients, regroup(regrouped, target, layout), strict=True):
                gradient.copy_(average)
        for bucket in waiting:
            bucket.on_done()
        return order.plan

    def _prepare_memories(self, layout: Layout, device: torch.device) -> Memories:
        if self.memories is None:
            self.layout = self.layout or layout
            self.memories = Memories.at_rest(self.layout, self.momentum)
        self.memories.move_to(device)
        return self.memories

    def _set_buckets(self, memories: Memories, waiting: Sequence[Bucket], gradients: Sequence[Tensor]) -> None:
        """Tell the controller of new buckets, and wait for the plan that it chooses for them."""
        if self._has_set_buckets:
            return
        if self.arrivals_s is None or len(self.arrivals_s) != len(memories.layout):
            self.arrivals_s = [bucket.submitted_at - waiting[0].submitted_at for bucket in waiting]
            self.arrivals_s += self.arrivals_s[-1:] * (len(memories.layout) - len(waiting))
        order = self._runner.controller.current
        takes_curves = order.takes_curves and not self._has_residual
        added = self._what_is_added(memories, gradients) if takes_curves else []
        curves = [curves_of(each, order.code_bits) for each in added]
        shapes = [bucket.shape for bucket in memories.layout]
        self._runner.controller.set_buckets(shapes, self.arrivals_s[: len(shapes)], curves)
        self._runner.controller.await_plan()
        self._has_set_buckets = True

    @staticmethod
    def _what_is_added(memories: Memories, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return what residuals would get from the gradients of a step: with momentum correction, velocities."""
        velocities = [memories.bucket(index, needed=False).velocity for index in range(len(gradients))]
        pairs = zip(gradients, velocities, strict=True)
        return [each if velocity is None else velocity.added_by(each) for each, velocity in pairs]

    def _start_plain(self, bucket: Bucket, plan: Plan) -> Callable[[], None]:
        """Start a plain sum; return a function that waits for it and completes the bucket."""
        memory = None if self.momentum is None else self._memory_of(bucket, plan)
        place = self._place(bucket.index, bucket.submitted_at)
        finish_sum = self._runner.start_plain(bucket.gradient, memory, plan, place)

        def finish() -> None:
            finish_sum()
            bucket.on_done()

        return finish

    def _place(self, index: int, submitted_at: float) -> Place:
        is_last = index == FUSED or self.memories is None or index == len(self.memories.layout) - 1
        return Place(step=self.step, bucket=index, is_last=is_last, submitted_at=submitted_at)

    def _run(self, gradient: Tensor, memory: BucketMemory, order: StepPlan, index: int, submitted_at: float) -> None:
        saves = self.loss_scale is not None
        self._runner.run(gradient, memory, order, self._place(index, submitted_at), saves=saves)

    def _run_together(
        self, gradients: Sequence[Tensor], memories: Memories, order: StepPlan, submitted_at: float, first: int
    ) -> None:
        """Average buckets from the first that was kept on, each for itself or all as one."""
        needed = order.plan.keeps_memory
        if order.plan.fusion == "step":
            fused = torch.cat(list(gradients))
            self._run(fused, memories.fused(needed=needed), order, FUSED, submitted_at)
            self._write_back(fused, gradients, memories)
            return
        for index, gradient in enumerate(gradients, first):
            self._run(gradient, memories.bucket(index, needed=needed), order, index, submitted_at)

    @staticmethod
    def _write_back(fused: Tensor, gradients: Sequence[Tensor], memories: Memories) -> None:
        """Write the average of a step into its buckets; what the type of one cannot hold stays in its residual."""
        starts = itertools.accumulate((gradient.numel() for gradient in gradients), initial=0)
        for start, gradient in zip(starts, gradients, strict=False):
            fitting, excess = fit(fused[start : start + gradient.numel()], gradient.dtype)
            if excess is not None and memories.residual is not None:
                memories.residual[start : start + gradient.numel()] += excess
            gradient.copy_(fitting)
