"""The DDP adapter: a communication hook, and its state."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn import Module

from headway.collectives import Executor
from headway.ddp import checkpoint
from headway.ddp.config import Adaptive, Fixed
from headway.ddp.statistics import Statistics
from headway.ddp.streams import after_backward, future_for
from headway.exchange import (
    Averager,
    Bucket,
    BucketLayout,
    CostModel,
    Engine,
    ExchangeRecord,
    ExecutorChannel,
    History,
    Monitor,
    NetworkView,
    Plan,
    warm_up,
)
from headway.exchange.monitor import PATIENCE_S
from headway.exchange.plan import PLAIN
from headway.kernels import warm_up as compile_kernels
from headway.network import Calibration, Link, calibrate
from headway.tuner import Chooser, Controller, Decision, Journal, policy_of

_UNKNOWN_LINK = Link(latency_s=0.0, bandwidth_bps=1e11)


class GradBucket(Protocol):
    """What DDP hands to a hook: ``torch.distributed.GradBucket``."""

    def index(self) -> int:
        """Return its number; buckets come in order."""

    def buffer(self) -> Tensor:
        """Return the flat gradient."""

    def parameters(self) -> list[Tensor]:
        """Return the parameters it is of, in order."""

    def is_last(self) -> bool:
        """Return whether it is the last of the step."""


class HookState:
    """All that a hook keeps, for one DDP model: engine thread, process groups, memories, records.

    ``ddp.register_comm_hook(HookState(config, module=model), hook)`` is the plain PyTorch way; `attach` does it in one
    call. Every rank of the group makes one.

    Args:
        config: What to do.
        module: The model whose gradients come; its names tell parameters apart in a checkpoint. Without it they are
            numbered.
        group: The process group of the DDP model; all ranks by default.
    """

    def __init__(
        self,
        config: Fixed | Adaptive | None = None,
        *,
        module: Module | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.config = config or Adaptive()
        if isinstance(self.config, Adaptive) or self.config.plan.exchange != "dense":
            compile_kernels()  # now, and not in the middle of a step that others wait for
        self._group = group
        self._executor = Executor(group, timeout_s=self.config.timeout_s, debug=self.config.debug)
        self._journal, trouble = self._open_journal()
        self._check_agreement(trouble)
        self._history = History()
        channel = ExecutorChannel(self._executor, self._cost_model())
        self._controller = self._controller_of(channel)
        self._monitor = self._monitor_of(channel)
        self._averager = Averager(
            channel, self._plan_of, self._history, self.config.seed, self._monitor, self._controller
        )
        self._engine = Engine()
        self._names = _Names(module)
        self._open: dict[Future[Tensor], Tensor] = {}

    def _plan_of(self, step: int) -> Plan:
        if isinstance(self.config, Fixed):
            return self.config.plan
        return PLAIN if self._controller is None else self._controller.plan_of(step)

    def _cost_model(self) -> CostModel:
        """Measure network and machine, as far as that matters."""
        num_ranks = self._executor.num_ranks
        if isinstance(self.config, Adaptive):
            if num_ranks == 1:
                return CostModel(1, Calibration(link=_UNKNOWN_LINK))
            return CostModel(num_ranks, calibrate(self._executor), warm_up(self._executor, self.config.plans))
        calibration = Calibration(link=self.config.link or _UNKNOWN_LINK)
        if self._link is None and (self.config.plan.needs_link or self.config.interval > 0):
            calibration = calibrate(self._executor)
        return CostModel(num_ranks, calibration)

    def _controller_of(self, channel: ExecutorChannel) -> Controller | None:
        if isinstance(self.config, Fixed) or channel.num_ranks == 1:
            return None
        if channel.rank != 0:
            return Controller(self.config.plans)
        chooser = Chooser(self.config.plans, policy_of(self.config.policy), self.config.falling, channel.costs)
        return Controller(self.config.plans, chooser, self._journal)

    def _monitor_of(self, channel: ExecutorChannel) -> Monitor | None:
        if self.config.interval == 0 or self._link is not None or channel.num_ranks == 1:
            return None
        executor = Executor(self._group, timeout_s=PATIENCE_S, debug=self.config.debug, cpu_only=True)
        timeout_s = self.config.timeout_s
        calibration = channel.costs.calibration
        return Monitor(executor, calibration, self.config.interval, self._controller, timeout_s=timeout_s)

    @property
    def _link(self) -> Link | None:
        """The link, if the user has told it."""
        return self.config.link if isinstance(self.config, Fixed) else None

    def submit(self, bucket: GradBucket) -> Future[Tensor]:
        """Hand a bucket to the engine; the future is its buffer, averaged."""
        self._engine.raise_error()
        gradient = bucket.buffer()
        _check_gradient(gradient, bucket.parameters())
        future = future_for(gradient)
        if self._executor.num_ranks == 1:
            self._averager.step += bucket.is_last()
            future.set_result(gradient)
            return future
        self._open[future] = gradient
        parameters = bucket.parameters()
        ours = Bucket(
            index=bucket.index(),
            gradient=gradient,
            layout=BucketLayout(tuple(map(self._names.of, parameters)), tuple(p.numel() for p in parameters)),
            is_last=bucket.is_last(),
            on_done=lambda: self._complete(future),
        )
        task = after_backward(lambda: self._averager.take(ours), gradient)
        self._engine.submit(task, give_up=self._give_up)
        self._surface_errors()
        return future

    def _complete(self, future: Future[Tensor]) -> None:
        future.set_result(self._open.pop(future))

    def _give_up(self) -> None:
        """Let go of all buckets, those too that wait for the last one: backward raises before anybody uses them."""
        self._executor.abandon()
        if self._monitor is not None:
            self._monitor.abandon()
        for future in list(self._open):
            self._complete(future)

    def _surface_errors(self) -> None:
        """Let backward() itself raise what the engine raises: DDP has no way to pass it on through a future.

        Outside of a backward, as when DDP's Join shadows one, the next call raises instead.
        """
        with contextlib.suppress(RuntimeError):
            torch.autograd.Variable._execution_engine.queue_callback(self._engine.drain)

    def _open_journal(self) -> tuple[Journal | None, str]:
        """Return the journal of rank 0, and what is wrong with it, if anything is."""
        if isinstance(self.config, Fixed) or self._executor.rank != 0:
            return None, ""
        try:
            return Journal(self.config.journal), ""
        except OSError as error:
            return None, str(error)

    def _check_agreement(self, trouble: str) -> None:
        """Find out now if ranks were configured differently, and not by a deadline in the middle of training."""
        own = torch.tensor([self.config.fingerprint, bool(trouble)])
        configurations, troubles = self._executor.all_gather(own, "native").T.tolist()
        odd = [rank for rank, theirs in enumerate(configurations) if theirs != configurations[0]]
        if odd or any(troubles):
            self._executor.close()
        if odd:
            raise ValueError(f"ranks {odd} have another configuration than rank 0: give the same to all")
        if any(troubles):
            raise ValueError(f"rank 0 cannot write its journal: {trouble or 'it says why'}")

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self._averager.plan

    @property
    def history(self) -> tuple[Decision, ...]:
        """The latest decisions about the plan, oldest first: what was known, what was chosen, and why."""
        return () if self._controller is None else self._controller.decisions

    @property
    def records(self) -> tuple[ExchangeRecord, ...]:
        """The latest exchanges of this rank, oldest first."""
        return self._history.records

    @property
    def network(self) -> NetworkView | None:
        """What the traffic tells of the network; None if nobody looks, or there is nobody to talk to."""
        return None if self._monitor is None else self._monitor.view

    def statistics(self) -> Statistics:
        """Return what all exchanges so far add up to."""
        return Statistics(step=self._averager.step, exchanges=self._history.totals)

    def state_dict(self) -> dict[str, Any]:
        """Return residuals, thresholds, step and all that decides what comes next. Between steps, on every rank."""
        self._engine.drain()
        return {**checkpoint.save(self._averager), "plan": asdict(self._plan_of(self._averager.step))}

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go on from a state; one of another number of ranks or another model is refused.

        Args:
            state: From `state_dict` of the same rank.
            strict: If False, a state that does not fit gives a warning, and its residuals are dropped.
        """
        self._engine.drain()
        if self._monitor is not None:
            self._monitor.end_council()
        checkpoint.load(self._averager, state, self._names.parameters, strict=strict)
        if self._monitor is not None:
            self._monitor.restart(self._averager.step)
        if self._controller is not None:
            number = torch.tensor([self._controller.number_of(state.get("plan"))])
            self._executor.broadcast(number, 0)
            self._controller.resume(int(number))
        if self._link is not None:
            self._averager.channel.link = self._link

    def abandon(self) -> None:
        """Give up, before `close`, where this rank has failed by itself: others lose it now, and not by a deadline."""
        self._give_up()

    def close(self) -> None:
        """End the engine and close the process groups, once training is over; a second call does nothing."""
        self._engine.close()
        if self._monitor is not None:
            self._monitor.close()
        self._executor.close()


def hook(state: HookState, bucket: GradBucket) -> Future[Tensor]:
    """Average a bucket as the plan in force says: a DDP communication hook.

    ``ddp.register_comm_hook(headway.HookState(config), headway.hook)``
    """
    return state.submit(bucket)


# DDP compares annotations with the types themselves, not with their names.
hook.__annotations__ |= {"bucket": vars(dist)["GradBucket"], "return": Future[Tensor]}


def _check_gradient(gradient: Tensor, parameters: list[Tensor]) -> None:
    if gradient.layout != torch.strided:
        raise ValueError("gradients are sparse, but Headway averages dense ones: use Embedding(sparse=False)")
    for parameter in parameters:
        if not parameter.is_floating_point():
            raise ValueError(f"a parameter is {parameter.dtype}, but Headway averages real floating-point numbers")


class _Names:
    """Names of parameters: those of the module, or numbers in the order in which they are first seen."""

    def __init__(self, module: Module | None) -> None:
        named = {} if module is None else {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.parameters = {name: parameter.numel() for name, parameter in named.items()}
        self._of = {id(parameter): name for name, parameter in named.items()}

    def of(self, parameter: Tensor) -> str:
        return self._of.setdefault(id(parameter), str(len(self._of)))
