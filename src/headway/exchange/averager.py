"""Takes the buckets of a step in order, and averages them as the control loop says."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from headway.compress import BucketMemory
from headway.exchange.base import Job, exchange_of
from headway.exchange.catalogue import PLAIN, is_plain
from headway.exchange.channel import ExecutorChannel
from headway.exchange.control import Controller, GainCurves, StepPlan
from headway.exchange.layout import BucketLayout, Layout, regroup
from headway.exchange.memories import Memories
from headway.exchange.plan import Plan
from headway.exchange.records import ExchangeRecord, History, dense_bytes
from headway.kernels import gain_curve

FUSED = -1
"""The bucket number of a record about all buckets of a step."""
_COMPRESSIBLE = (torch.float32, torch.float16, torch.bfloat16)
_EXACT = (torch.float32, torch.float64)
"""Sent in these types, nothing of a residual stays behind, to rounding."""
_NUM_DENSE_STEPS = 2
_NUM_TO_ADOPT = 3
"""Steps in a row that must have the same new buckets; a resumed static graph has others for two steps."""


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """A bucket as DDP hands it over."""

    index: int
    gradient: Tensor
    """Flat; replaced by the average."""
    layout: BucketLayout
    is_last: bool
    on_done: Callable[[], None]
    submitted_at: float = field(default_factory=time.perf_counter)


class Averager:
    """Averages step after step. Not thread-safe.

    The first two steps are dense and native: DDP rebuilds its buckets after the first, or for a static graph after the
    second. The third shows the buckets that stay, so all of them wait for the last one. A step whose buckets differ
    from those of the memories, such as the first step of a resumed run, is regrouped to the memories' buckets; if the
    other buckets stay, they are adopted.

    Args:
        channel: Runs the collectives.
        controller: Decides how each step is averaged.
        history: Collects the records.
        seed: The seed of all random numbers, the same on all ranks.
    """

    def __init__(self, channel: ExecutorChannel, controller: Controller, history: History, seed: int) -> None:
        self.channel = channel
        self.seed = seed
        self.step = 0
        self.layout: Layout | None = None
        """The layout of the memories, or of the last step while there are none."""
        self.memories: Memories | None = None
        self.arrivals_s: list[float] | None = None
        """When the buckets of a step arrived on this rank, after the first one."""
        self._controller = controller
        self._history = history
        self._has_set_buckets = False
        self._num_settling = _NUM_DENSE_STEPS
        self._seen: deque[Layout] = deque(maxlen=_NUM_TO_ADOPT)
        self._taken: list[Bucket] = []
        self._waiting: list[Bucket] = []
        self._under_way: list[Callable[[], None]] = []

    def take(self, bucket: Bucket) -> None:
        """Average a bucket, or keep it until the last one of its step has come."""
        if not self._taken:
            self._controller.begin_step(self.step)
        order = self._order
        self._taken.append(bucket)
        if not self._can_go_alone(bucket, order.plan):
            self._waiting.append(bucket)
        elif is_plain(order.plan) and not self._has_residual and not order.is_measured:
            self._under_way.append(self._start_plain(bucket, order.plan))
        else:
            memory = self._memory_of(bucket, order.plan)
            self._exchange(bucket.gradient, memory, order, bucket.index, bucket.submitted_at)
            bucket.on_done()
        if bucket.is_last:
            self._end_step(order.plan)

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return PLAIN if self._is_settling else self._controller.current.plan

    @property
    def _order(self) -> StepPlan:
        """How to average the buckets of this step, on the link in force."""
        order = self._controller.current
        self.channel.costs = order.costs
        if self._is_settling:
            return replace(order, plan=PLAIN)
        return order

    def resume(
        self, step: int, layout: Layout | None, memories: Memories | None, arrivals_s: list[float] | None
    ) -> None:
        """Continue from the state of another run; without a layout, as if buckets were not known yet."""
        self.step, self.layout, self.memories, self.arrivals_s = step, layout, memories, arrivals_s
        self._num_settling = _NUM_DENSE_STEPS if layout is None else max(0, _NUM_DENSE_STEPS - step)
        self._seen.clear()
        self._has_set_buckets = False

    @property
    def _is_settling(self) -> bool:
        """Whether DDP may still rebuild its buckets."""
        return self._num_settling > 0

    @property
    def _has_residual(self) -> bool:
        return self.memories is not None and self.memories.residual is not None

    def _can_go_alone(self, bucket: Bucket, plan: Plan) -> bool:
        if self._is_settling:
            return True
        if self.memories is None or plan.fusion != "bucket" or self._waiting:
            return False
        has_same_layout = bool(self._seen) and self._seen[-1] == self.memories.layout
        return has_same_layout and self.memories.layout[bucket.index : bucket.index + 1] == (bucket.layout,)

    def _memory_of(self, bucket: Bucket, plan: Plan) -> BucketMemory:
        if self.memories is None:
            return BucketMemory(bucket.layout.shape)
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
        self._seen.append(layout)
        if self._seen.count(layout) == _NUM_TO_ADOPT and self.memories is not None and layout != self.memories.layout:
            self.memories = self.memories.regrouped(layout)
            self.layout = layout
        is_exact = all(bucket.gradient.dtype in _EXACT for bucket in taken)
        if self.memories is not None and not plan.keeps_memory and is_exact:
            self.memories.forget()  # all of it has been sent
        self._num_settling = max(0, self._num_settling - 1)
        self._controller.end_step(taken[-1].submitted_at)
        self.step += 1

    def _run_waiting(self) -> Plan:
        """Average the buckets that were kept, now that the step is complete; return the plan that was used."""
        waiting, self._waiting = self._waiting, []
        layout: Layout = tuple(bucket.layout for bucket in waiting)
        memories = self._prepare_memories(layout, waiting[0].gradient.device)
        if self.arrivals_s is None:
            self.arrivals_s = [bucket.submitted_at - waiting[0].submitted_at for bucket in waiting]
        if not self._has_set_buckets:
            self._controller.set_buckets([bucket.shape for bucket in memories.layout], self.arrivals_s)
            self._controller.await_plan()
            self._has_set_buckets = True
        order = self._order
        gradients = [bucket.gradient for bucket in waiting]
        submitted_at = waiting[-1].submitted_at
        if layout == memories.layout:
            self._run_together(gradients, memories, order, submitted_at)
        else:
            regrouped = regroup(gradients, layout, memories.layout)
            self._run_together(regrouped, memories, order, submitted_at)
            for gradient, average in zip(gradients, regroup(regrouped, memories.layout, layout), strict=True):
                gradient.copy_(average)
        for bucket in waiting:
            bucket.on_done()
        return order.plan

    def _prepare_memories(self, layout: Layout, device: torch.device) -> Memories:
        if self.memories is None:
            self.layout = layout if self._seen or self.layout is None else self.layout
            self.memories = Memories(self.layout)
        self.memories.move_to(device)
        return self.memories

    def _start_plain(self, bucket: Bucket, plan: Plan) -> Callable[[], None]:
        """Start what DDP would do without a hook, while more buckets come; return a function that waits for it."""
        start = time.perf_counter()
        wait = self.channel.start_plain_sum(bucket.gradient.mul_(1 / self.channel.num_ranks))

        def finish() -> None:
            wait()
            self._note(plan, bucket.index, bucket.gradient, 1.0, start, bucket.submitted_at)
            bucket.on_done()

        return finish

    def _run_together(
        self, gradients: Sequence[Tensor], memories: Memories, order: StepPlan, submitted_at: float
    ) -> None:
        needed = order.plan.keeps_memory
        if order.plan.fusion == "step":
            fused = torch.cat(list(gradients))
            self._exchange(fused, memories.fused(needed=needed), order, FUSED, submitted_at)
            parts = torch.split(fused, [gradient.numel() for gradient in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part)
            return
        for index, gradient in enumerate(gradients):
            self._exchange(gradient, memories.bucket(index, needed=needed), order, index, submitted_at)

    def _exchange(
        self, gradient: Tensor, memory: BucketMemory, order: StepPlan, index: int, submitted_at: float
    ) -> None:
        """Run one exchange, and record it."""
        exchange = exchange_of(order.plan)
        start = time.perf_counter()
        sends_any_type = not order.plan.keeps_memory and not memory.is_used
        narrow = gradient if gradient.dtype in _COMPRESSIBLE or sends_any_type else gradient.float()
        job = Job(step=self.step, bucket=index, gradient=narrow, memory=memory, seed=self.seed)
        curves = _take_curves(narrow, memory) if order.takes_curves else None
        gain = exchange.run(job, self.channel)
        if narrow is not gradient:
            gradient.copy_(narrow)
        self._note(order.plan, index, gradient, gain, start, submitted_at, curves)

    def _note(
        self,
        plan: Plan,
        index: int,
        gradient: Tensor,
        gain: float,
        start: float,
        submitted_at: float,
        curves: GainCurves | None = None,
    ) -> None:
        meter = self.channel.read_meter()
        assert meter.largest is not None
        record = ExchangeRecord(
            step=self.step,
            bucket=index,
            exchange=plan.exchange,
            algorithm=meter.algorithm,
            ratio=plan.sent_ratio,
            wire_bytes=meter.wire_bytes,
            dense_bytes=dense_bytes(gradient.nbytes, self.channel.num_ranks),
            rounds=meter.latencies,
            largest=meter.largest,
            was_alone=not self._under_way,
            compress_s=time.perf_counter() - start - meter.transfer_s,
            wait_s=start - submitted_at,
            transfer_s=meter.transfer_s,
            gain=gain,
        )
        self._history.add(record)
        self._controller.observe(record, curves)


def _take_curves(gradient: Tensor, memory: BucketMemory) -> GainCurves:
    """Return the gain curves of a bucket.

    Where there is a residual, the gradient is added to it in the same pass, and left as zeros for the exchange.
    """
    if not memory.is_used:
        curve = gain_curve(gradient.float() if gradient.dtype == torch.float64 else gradient)
        return GainCurves(curve, curve)
    curves = GainCurves(*memory.whole.accumulate_with_gain_curves(gradient))
    gradient.zero_()
    return curves
