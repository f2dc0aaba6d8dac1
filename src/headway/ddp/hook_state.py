"""The DDP adapter: a communication hook, and its state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from headway.averaging import Averaging, Handle, Statistics
from headway.collectives.ends import closing_deadline
from headway.ddp.backward import EndOfBackward, notice_failure
from headway.ddp.model import Buffers, Model
from headway.ddp.momentum import HandedOver, check_free, has_momentum, why_not
from headway.ddp.streams import after_backward, future_for
from headway.exchange import Bucket
from headway.tuner import Adaptive, Fixed

_logger = logging.getLogger("headway")


class GradBucket(Protocol):
    """What DDP hands to a hook: ``torch.distributed.GradBucket``."""

    def index(self) -> int:
        """Return the number of the bucket; buckets come in order."""

    def buffer(self) -> Tensor:
        """Return the flat gradient."""

    def parameters(self) -> list[Tensor]:
        """Return the parameters of the bucket, in order."""

    def is_last(self) -> bool:
        """Return whether it is the last bucket of the step."""


class LossScaler(Protocol):
    """A ``torch.amp.GradScaler``, or what stands for one."""

    def get_scale(self) -> float:
        """Return what the loss is multiplied by."""


class HookState(Handle):
    """The state of a hook, for one DDP model: engine thread, process groups, memories, control loop, records.

    ``ddp.register_comm_hook(HookState(config, module=model), hook)`` is the plain PyTorch way; `attach` does it in one
    call. Every rank of the group makes one.

    Args:
        config: `Adaptive`, the default, or `Fixed`.
        module: The model whose gradients are averaged; its names identify parameters in a checkpoint. Without it they
            are numbered. Its DDP wrapper says more: whether parameters may be unused, and which buffers there are.
        group: The process group of the DDP model; all ranks by default.
        scaler: The ``torch.amp.GradScaler`` of the script: residuals follow the scale of its loss.
        optimizer: The optimizer of the script. An SGD with momentum hands it over: see `headway.ddp.momentum`.
        buffers: "average" to average the buffers every 20 steps instead of DDP's broadcast before every forward pass,
            given the wrapper; "ddp" to leave them to DDP.
    """

    def __init__(
        self,
        config: Fixed | Adaptive | None = None,
        *,
        module: Module | None = None,
        group: dist.ProcessGroup | None = None,
        scaler: LossScaler | None = None,
        optimizer: Optimizer | None = None,
        buffers: Buffers = "average",
    ) -> None:
        check_free(optimizer)
        self._model = Model(module)
        self._scaler = scaler
        self._loss_scale: float | None = None
        self._num_ranks = dist.get_world_size(group) if dist.is_initialized() else 1
        self._handed_over = self._find_momentum(optimizer)
        self._averaging = Averaging(
            config or Adaptive(),
            group=group,
            find_buffers=self._model.buffers_to_average if buffers == "average" else dict,
            momentum=None if self._handed_over is None else self._handed_over.momentum,
            may_skip_parameters=self._model.may_skip_parameters,
        )
        self._open: dict[Future[Tensor], Tensor] = {}
        self._stop_watching: Callable[[], None] = lambda: None
        # Last: if anything above fails, model and optimizer are as they were.
        if buffers == "average":
            self._model.take_over_buffers()
        else:
            self._model.leave_buffers()
        if self._handed_over is not None:
            self._handed_over.start()

    @property
    def config(self) -> Fixed | Adaptive:
        """The configuration."""
        return self._averaging.config

    def submit(self, bucket: GradBucket) -> Future[Tensor]:
        """Hand a bucket to the engine; the future is its buffer, averaged."""
        self._averaging.engine.raise_error()
        gradient = bucket.buffer()
        _check_gradient(gradient, bucket.parameters())
        future = future_for(gradient)
        if self._num_ranks == 1:
            self._averaging.averager.step += bucket.is_last()
            future.set_result(gradient)
            return future
        self._open[future] = gradient
        parameters = bucket.parameters()
        if bucket.index() == 0:
            self._begin_step()
        ours = Bucket(
            index=bucket.index(),
            gradient=gradient,
            layout=self._model.layout_of(parameters, gradient.element_size()),
            is_last=bucket.is_last(),
            on_done=lambda: self._complete(future),
            loss_scale=self._loss_scale if bucket.index() == 0 else None,
        )
        task = after_backward(lambda: self._take(ours, parameters), gradient)
        self._averaging.engine.submit(task, give_up=self._give_up)
        self._surface_errors()
        return future

    def _begin_step(self) -> None:
        """Look at what the script may have changed since the last step."""
        self._loss_scale = None if self._scaler is None else self._scaler.get_scale()
        if self._handed_over is not None:
            self._handed_over.begin_step()

    def _take(self, bucket: Bucket, parameters: list[Tensor]) -> None:
        """Average a bucket, on the engine's thread."""
        if self._handed_over is not None:
            scale, skips_zeros = self._loss_scale or 1.0, self._model.may_skip_parameters
            self._handed_over.add_decay(bucket.gradient, parameters, scale, skips_zeros=skips_zeros)
        self._averaging.averager.take(bucket)

    def _find_momentum(self, optimizer: Optimizer | None) -> HandedOver | None:
        """Return the momentum that an optimizer can hand over; if there is none, say why."""
        if optimizer is None:
            _logger.info("without optimizer= the momentum of an SGD is not corrected, and takes more bytes to learn")
            return None
        reason = why_not(optimizer, self._model.tensors)
        if self._num_ranks == 1:
            reason = "there is only one rank"
        if reason is None:
            return HandedOver(optimizer, expects_skips=self._scaler is not None)
        is_expected = not has_momentum(optimizer) or self._num_ranks == 1
        level = logging.INFO if is_expected else logging.WARNING
        _logger.log(level, "the optimizer applies its own momentum, if it has any: %s", reason)
        return None

    def _complete(self, future: Future[Tensor]) -> None:
        gradient = self._open.pop(future, None)
        if gradient is not None:  # neither the engine nor `abandon` has completed it before
            future.set_result(gradient)

    def _give_up(self) -> None:
        """Complete all buckets, also those that wait for the last one: backward raises before anything uses them."""
        self.cut_off()
        for future in list(self._open):
            self._complete(future)

    def cut_off(self) -> None:
        """Let no other rank wait for this one: its backward pass has failed."""
        self._averaging.cut_off()

    def watch_backward(self, ddp: DistributedDataParallel) -> None:
        """Let other ranks lose this one if a backward pass of this model fails, until the state is closed."""
        self._stop_watching = notice_failure(ddp, self.cut_off)

    def _surface_errors(self) -> None:
        """Let backward() itself raise errors of the engine, and other ranks lose this one if backward fails.

        DDP cannot pass errors on through a future. Outside of a backward pass, as when DDP's Join shadows one, the
        next call raises instead.
        """
        EndOfBackward(self._averaging.engine.drain, self.cut_off).queue()

    def statistics(self) -> Statistics:
        """Return the totals of all exchanges so far."""
        return self._averaging.statistics()

    def average_buffers(self) -> None:
        """Average the model's buffers now, as before an evaluation and at the end. Between steps, on every rank.

        They are averaged every 20 steps without it. If they are left to DDP, nothing happens.
        """
        self._averaging.average_buffers()

    def state_dict(self) -> dict[str, Any]:
        """Return residuals, thresholds, step and all that decides what comes next. Between steps, on every rank."""
        return self._averaging.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Continue from a state; one of another number of ranks or another model is rejected.

        Args:
            state: From `state_dict` of the same rank.
            strict: If False, a state that does not fit gives a warning, and its residuals are dropped.
        """
        self._averaging.load_state_dict(state, self._model.parameters, strict=strict)

    def abandon(self) -> None:
        """Give up before `close`, where this rank has failed: other ranks lose it now, and not by a deadline."""
        self._give_up()

    def close(self) -> None:
        """End the engine and close the process groups, once training is over; a second call does nothing.

        It averages no buffers, since other ranks may be gone: see `average_buffers`.
        """
        deadline = closing_deadline()
        self._stop_watching()
        self._averaging.engine.close()
        if self._handed_over is not None:
            self._handed_over.give_back()
        self._averaging.close(deadline)


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
