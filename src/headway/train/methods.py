"""Methods to train one model on many workers, behind one interface: plain DDP, DDP with a hook, local steps, gossip."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from headway import gossip, local
from headway.ddp import Adaptive, Fixed, attach
from headway.exchange import dense_bytes
from headway.report.reading import Counted
from headway.train.settings import LOCAL, TrainSettings

_SYNC_BUFFERS = "forward_sync_buffers"
"""The name in newer versions of torch."""
_HAS_IT = _SYNC_BUFFERS in inspect.signature(DistributedDataParallel).parameters
_KEEP_BUFFERS: dict[str, Any] = {_SYNC_BUFFERS if _HAS_IT else "broadcast_buffers": False}
"""For plain DDP: buffers are averaged before an evaluation, not broadcast before every step: one collective less."""


class Method(Protocol):
    """How workers train together."""

    module: nn.Module
    """The module to call in the forward pass."""
    handle: Counted
    """Counts the traffic."""
    shares_model: bool
    """Whether all ranks evaluate the same model, and cannot go on without each other."""

    def update(self) -> None:
        """Update the parameters, after a backward pass."""

    def evaluating(self) -> AbstractContextManager[None]:
        """Make the bare model the one to evaluate, inside this context; every rank enters it."""

    def finish(self) -> None:
        """Do what is left to do after the last step of a run; every rank calls it."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank: optimizer and residuals."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; every rank calls it."""

    def close(self) -> None:
        """Release threads and connections."""


class PlainTraffic:
    """The traffic of DDP without a hook, as far as it is known: ring all-reduces of all gradients."""

    exchange = "dense"

    def __init__(self, model: nn.Module, num_ranks: int) -> None:
        numel = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        self._bytes_per_step = dense_bytes(4 * numel, num_ranks)
        self.num_steps = 0

    def __str__(self) -> str:
        return "plain DDP"

    def statistics(self) -> Any:
        sent = self.num_steps * self._bytes_per_step
        return SimpleNamespace(step=self.num_steps, wire_bytes=sent, dense_bytes=sent)


class WithDDP:
    """Plain DDP, or DDP with Headway's hook; if that is adaptive, with momentum correction.

    Args:
        model: The bare model.
        optimizer: Optimizer of its parameters.
        config: Configuration of the hook; None for plain DDP.
        group: The ranks.
    """

    shares_model = True

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, config: Adaptive | Fixed | None, group: dist.ProcessGroup
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._group = group
        options = _KEEP_BUFFERS if config is None else {}
        self.module: nn.Module = DistributedDataParallel(model, process_group=group, **options)
        corrected = optimizer if isinstance(config, Adaptive) else None
        self._hook = None if config is None else attach(self.module, config, optimizer=corrected)
        self._traffic = PlainTraffic(model, dist.get_world_size(group))
        self.handle: Counted = self._hook or self._traffic

    def update(self) -> None:
        self._optimizer.step()
        self._traffic.num_steps += 1

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        if self._hook is None:
            average_buffers(self._model, self._group)
        else:
            self._hook.average_buffers()
        yield

    def finish(self) -> None:
        """Nothing: all ranks have the same model after every step."""

    def state_dict(self) -> dict[str, Any]:
        hook = None if self._hook is None else self._hook.state_dict()
        return {"optimizer": self._optimizer.state_dict(), "hook": hook}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._optimizer.load_state_dict(state["optimizer"])
        if self._hook is not None:
            self._hook.load_state_dict(state["hook"])

    def close(self) -> None:
        if self._hook is not None:
            self._hook.close()


class _WithReplicas:
    """An optimizer around another one, without DDP: every worker has a model of its own."""

    _optimizer: gossip.GossipOptimizer | local.LocalOptimizer

    def update(self) -> None:
        self._optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._optimizer.load_state_dict(state["optimizer"])

    def close(self) -> None:
        self._optimizer.close()


class Gossiping(_WithReplicas):
    """Gossip: workers average their models with those of their neighbours."""

    shares_model = False

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, settings: TrainSettings, group: dist.ProcessGroup
    ) -> None:
        assert settings.gossip_algorithm is not None
        self.module = model
        self._optimizer: gossip.GossipOptimizer = gossip.wrap(
            model,
            optimizer,
            settings.gossip_algorithm,
            settings.topology,
            seed=settings.seed,
            timeout_s=settings.timeout_s,
            group=group,
        )
        self._num_ranks = dist.get_world_size(group)
        self.handle: Counted = self._optimizer

    def evaluating(self) -> AbstractContextManager[None]:
        return self._optimizer.averaged() if self._num_ranks > 1 else nullcontext()

    def finish(self) -> None:
        """Nothing: every rank keeps its own model."""


class LocalSteps(_WithReplicas):
    """Local steps: workers step by themselves, and average what they have moved every so often."""

    shares_model = True

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, settings: TrainSettings, group: dist.ProcessGroup
    ) -> None:
        self.module = model
        self._optimizer: local.LocalOptimizer = local.wrap(
            model, optimizer, settings.steps_between_exchanges, config=settings.config, group=group
        )
        self.handle: Counted = self._optimizer

    def evaluating(self) -> AbstractContextManager[None]:
        return self._optimizer.averaged()

    def finish(self) -> None:
        """Average all that ranks have moved since the last exchange, and what they have kept back."""
        self._optimizer.average_()


def make_method(settings: TrainSettings, model: nn.Module, optimizer: Optimizer, group: dist.ProcessGroup) -> Method:
    """Return the method of the settings. Every rank of the group calls it."""
    if settings.gossip_algorithm is not None:
        return Gossiping(model, optimizer, settings, group)
    if settings.method == LOCAL:
        return LocalSteps(model, optimizer, settings, group)
    return WithDDP(model, optimizer, settings.config, group)


@torch.no_grad()
def average_buffers(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Average the floating buffers of a model over all ranks, in one all-reduce, where no hook does it."""
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if not buffers:
        return
    flat = torch.cat([buffer.flatten() for buffer in buffers])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    parts = torch.split(flat, [buffer.numel() for buffer in buffers])
    for buffer, part in zip(buffers, parts, strict=True):
        buffer.copy_(part.view_as(buffer))
