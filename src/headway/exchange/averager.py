"""Takes the buckets of a step in order, and averages them as the plan says."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from headway.collectives import NATIVE
from headway.compress import BucketMemory
from headway.exchange.advisor import Advisor
from headway.exchange.base import Job
from headway.exchange.catalogue import exchange_of
from headway.exchange.channel import ExecutorChannel
from headway.exchange.dense import Dense
from headway.exchange.fusion import cheaper_fusion
from headway.exchange.informant import Informant
from headway.exchange.layout import BucketLayout, Layout, regroup
from headway.exchange.memories import Memories
from headway.exchange.monitor import Monitor
from headway.exchange.plan import AUTO, PLAIN, Plan
from headway.exchange.records import ExchangeRecord, History

FUSED = -1
"""The bucket number of a record that is about all buckets of a step."""
_COMPRESSIBLE = (torch.float32, torch.float16, torch.bfloat16)
_EXACT = (torch.float32, torch.float64)
"""Sent in these, nothing of a residual stays behind, to rounding."""
_NUM_DENSE_STEPS = 2
_NUM_TO_ADOPT = 3
"""So many steps in a row must have the same other buckets; a static graph that is resumed has them for two."""


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """A bucket as DDP hands it over."""

    index: int
    gradient: Tensor
    """Flat; the average replaces it."""
    layout: BucketLayout
    is_last: bool
    on_done: Callable[[], None]
    submitted_at: float = field(default_factory=time.perf_counter)


class Averager:
    """Averages step after step. Not for more than one thread at a time.

    The first two steps are dense and native: DDP cuts its buckets anew after the first, or the second for a static
    graph. The third shows what they are from then on, so its buckets wait for the last one. A step whose buckets
    are others than those of the memories, the first one of a resumed run, is regrouped to these; if the others
    stay, they are adopted.

    Args:
        channel: What everything goes through.
        plan_of: Returns the plan in force at a step.
        history: Where records go.
        seed: Of all random numbers, alike on all ranks.
        monitor: Follows the link, if it is to be followed.
        advisor: Chooses the plan, if it is to be chosen; ``plan_of`` is then its own.
    """

    def __init__(
        self,
        channel: ExecutorChannel,
        plan_of: Callable[[int], Plan],
        history: History,
        seed: int,
        monitor: Monitor | None = None,
        advisor: Advisor | None = None,
    ) -> None:
        self.channel = channel
        self.seed = seed
        self.step = 0
        self.layout: Layout | None = None
        """That of the memories, or of the last step while there are none."""
        self.memories: Memories | None = None
        self.arrivals_s: list[float] | None = None
        """When the buckets of a step arrived at rank 0, by which "auto" fusion is decided."""
        self._plan_of = plan_of
        self._history = history
        self._monitor = monitor
        self._informant = None if advisor is None else Informant(advisor, channel.executor)
        self._fusions: dict[Plan, str] = {}
        self._num_settling = _NUM_DENSE_STEPS
        self._seen: deque[Layout] = deque(maxlen=_NUM_TO_ADOPT)
        self._taken: list[Bucket] = []
        self._waiting: list[Bucket] = []
        self._under_way: list[Callable[[], None]] = []

    def take(self, bucket: Bucket) -> None:
        """Average a bucket, or keep it until the last one of its step is there."""
        if not self._taken and self._monitor is not None:
            self._look_at_network(self._monitor)
        plan = self._decide_plan()
        self._taken.append(bucket)
        if not self._can_go_alone(bucket, plan):
            self._waiting.append(bucket)
        elif _is_plain(plan) and not self._has_residual and not self._is_measured:
            self._under_way.append(self._start_plain(bucket, plan))
        else:
            self._exchange(bucket.gradient, self._memory_of(bucket, plan), plan, bucket.index, bucket.submitted_at)
            bucket.on_done()
        if bucket.is_last:
            self._end_step(plan)

    @property
    def plan(self) -> Plan:
        """The plan in force, with its fusion decided as soon as it can be."""
        if self._is_settling:
            return PLAIN
        plan = self._plan_of(self.step)
        if plan.fusion != AUTO or self.arrivals_s is None or self.memories is None:
            return plan
        return replace(plan, fusion=self._fusions.get(plan) or self._cheaper_fusion(plan))

    def _decide_plan(self) -> Plan:
        """Return the plan in force, and stay with its fusion until the network changes."""
        plan = self.plan
        if not self._is_settling and self.arrivals_s is not None and self.memories is not None:
            self._fusions[self._plan_of(self.step)] = plan.fusion
        return plan

    def resume(
        self, step: int, layout: Layout | None, memories: Memories | None, arrivals_s: list[float] | None
    ) -> None:
        """Go on from where another run was; without a layout, as if buckets were not known yet."""
        self.step, self.layout, self.memories, self.arrivals_s = step, layout, memories, arrivals_s
        self._num_settling = _NUM_DENSE_STEPS if layout is None else max(0, _NUM_DENSE_STEPS - step)
        self._seen.clear()
        self._fusions.clear()
        if self._informant is not None:
            self._informant.restart()

    @property
    def _is_settling(self) -> bool:
        """Whether DDP may still cut its buckets anew."""
        return self._num_settling > 0

    @property
    def _is_measured(self) -> bool:
        """Whether a council comes next: exchanges then follow each other, so that each tells how long it took."""
        if self._informant is not None and self._num_settling == _NUM_DENSE_STEPS:
            return True  # the first step shows what there is to gain; the second, how long plain sums take
        return self._monitor is not None and self._monitor.is_measured(self.step)

    def _look_at_network(self, monitor: Monitor) -> None:
        """Learn what the network is like now; if it has changed, think again how to fuse."""
        num_changes = len(monitor.view.changes)
        if monitor.finish(self.step):
            self.channel.link = monitor.link_to_adopt(self.channel.link)
        if len(monitor.view.changes) > num_changes:
            self._fusions.clear()
        if monitor.is_due(self.step) and not monitor.is_under_way:
            monitor.start(self.step, self._history.unread())

    @property
    def _has_residual(self) -> bool:
        return self.memories is not None and self.memories.residual is not None

    def _can_go_alone(self, bucket: Bucket, plan: Plan) -> bool:
        if self._is_settling:
            return True
        if self.memories is None or plan.fusion != "bucket" or self._waiting:
            return False
        return bool(self._seen) and self._seen[-1] == self.memories.layout and self._fits(bucket)

    def _fits(self, bucket: Bucket) -> bool:
        assert self.memories is not None
        return self.memories.layout[bucket.index : bucket.index + 1] == (bucket.layout,)

    def _memory_of(self, bucket: Bucket, plan: Plan) -> BucketMemory:
        if self.memories is None:
            return BucketMemory(bucket.layout.shape)
        return self.memories.bucket(bucket.index, needed=_needs_memory(plan))

    def _end_step(self, plan: Plan) -> None:
        """Wait for what is under way, average what has been kept, and learn how buckets are cut."""
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
        if self.memories is not None and not _needs_memory(plan) and is_exact:
            self.memories.forget()  # all of it has been sent
        self._num_settling = max(0, self._num_settling - 1)
        if self._informant is not None:
            self._informant.note_step(taken[-1].submitted_at, is_measured=self._is_measured)
        if self._monitor is not None:
            self._monitor.end_step()
        self.step += 1

    def _run_waiting(self) -> Plan:
        """Average what has been kept, now that all of the step is there; return the plan it was done by."""
        waiting, self._waiting = self._waiting, []
        layout: Layout = tuple(bucket.layout for bucket in waiting)
        if self.memories is None:
            self.layout = layout if self._seen or self.layout is None else self.layout
            self.memories = Memories(self.layout)
        self.memories.move_to(waiting[0].gradient.device)
        if self.arrivals_s is None:
            self.arrivals_s = self._agree_on_arrivals(waiting)
        if self._informant is not None:
            self._informant.open(self.step, self.memories.layout, self.arrivals_s)
        plan = self._decide_plan()
        gradients = [bucket.gradient for bucket in waiting]
        submitted_at = waiting[-1].submitted_at
        if layout == self.memories.layout:
            self._run_together(gradients, plan, submitted_at)
        else:
            regrouped = regroup(gradients, layout, self.memories.layout)
            self._run_together(regrouped, plan, submitted_at)
            for gradient, average in zip(gradients, regroup(regrouped, self.memories.layout, layout), strict=True):
                gradient.copy_(average)
        for bucket in waiting:
            bucket.on_done()
        return plan

    def _start_plain(self, bucket: Bucket, plan: Plan) -> Callable[[], None]:
        """Start what DDP would do without a hook, while more buckets come; return what waits for it."""
        start = time.perf_counter()
        wait = self.channel.start_plain_sum(bucket.gradient.mul_(1 / self.channel.num_ranks))

        def finish() -> None:
            wait()
            self._note(plan, bucket.index, bucket.gradient, 1.0, start, bucket.submitted_at)
            bucket.on_done()

        return finish

    def _run_together(self, gradients: Sequence[Tensor], plan: Plan, submitted_at: float) -> None:
        assert self.memories is not None
        needed = _needs_memory(plan)
        if plan.fusion == "step":
            fused = torch.cat(list(gradients))
            self._exchange(fused, self.memories.fused(needed=needed), plan, FUSED, submitted_at)
            parts = torch.split(fused, [gradient.numel() for gradient in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part)
            return
        for index, gradient in enumerate(gradients):
            self._exchange(gradient, self.memories.bucket(index, needed=needed), plan, index, submitted_at)

    def _exchange(self, gradient: Tensor, memory: BucketMemory, plan: Plan, index: int, submitted_at: float) -> None:
        """Run one exchange, and leave a record of it."""
        exchange = exchange_of(plan)
        start = time.perf_counter()
        goes_as_it_is = isinstance(exchange, Dense) and not memory.is_used
        narrow = gradient if gradient.dtype in _COMPRESSIBLE or goes_as_it_is else gradient.float()
        job = Job(step=self.step, bucket=index, gradient=narrow, memory=memory, seed=self.seed)
        if self._informant is not None and self._is_measured:
            self._informant.show(narrow, memory)
        gain = exchange.run(job, self.channel)
        if narrow is not gradient:
            gradient.copy_(narrow)
        self._note(plan, index, gradient, gain, start, submitted_at)

    def _note(self, plan: Plan, index: int, gradient: Tensor, gain: float, start: float, submitted_at: float) -> None:
        meter = self.channel.read_meter()
        assert meter.largest is not None
        num_ranks = self.channel.num_ranks
        self._history.add(
            ExchangeRecord(
                step=self.step,
                bucket=index,
                exchange=plan.exchange,
                algorithm=meter.algorithm,
                ratio=plan.ratio if plan.sends_some else 1.0,
                wire_bytes=meter.wire_bytes,
                dense_bytes=2 * (num_ranks - 1) * gradient.nbytes // num_ranks,
                rounds=meter.latencies,
                largest=meter.largest,
                was_alone=not self._under_way,
                compress_s=time.perf_counter() - start - meter.transfer_s,
                wait_s=start - submitted_at,
                transfer_s=meter.transfer_s,
                gain=gain,
            )
        )

    def _agree_on_arrivals(self, buckets: Sequence[Bucket]) -> list[float]:
        """Return when buckets arrived at rank 0: no rank may decide by its own clock."""
        arrivals = torch.tensor([b.submitted_at - buckets[0].submitted_at for b in buckets], dtype=torch.float64)
        self.channel.executor.broadcast(arrivals, 0)
        return arrivals.tolist()

    def _cheaper_fusion(self, plan: Plan) -> str:
        assert self.memories is not None
        assert self.arrivals_s is not None
        if len(self.arrivals_s) != len(self.memories.layout):  # buckets were regrouped: their arrivals tell nothing
            return "step"
        costs = self.channel.costs
        costs_s = [costs.of(plan, bucket.shape).seconds for bucket in self.memories.layout]
        fused_s = costs.of(plan, self.memories.fused(needed=False).shape).seconds
        return cheaper_fusion(self.arrivals_s, costs_s, fused_s)


def _needs_memory(plan: Plan) -> bool:
    return plan.exchange != "dense" or plan.values != "fp32"


def _is_plain(plan: Plan) -> bool:
    """Whether a plan asks for what DDP does without a hook."""
    return (plan.exchange, plan.algorithm, plan.values) == ("dense", NATIVE, "fp32")
