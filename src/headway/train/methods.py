"""Ways to train one model on many workers, behind one interface: plain DDP, DDP with Headway's hook, gossip."""

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

from headway.ddp import Adaptive, Fixed, attach
from headway.gossip import wrap
from headway.report.reading import Counted
from headway.train.settings import Settings

_SYNC_BUFFERS = "forward_sync_buffers"
"""As newer versions of torch call it."""
_KNOWS_IT = _SYNC_BUFFERS in inspect.signature(DistributedDataParallel).parameters
_KEEP_BUFFERS: dict[str, Any] = {_SYNC_BUFFERS if _KNOWS_IT else "broadcast_buffers": False}
"""Buffers are averaged before they are tested, not broadcast before every step: a step is then one exchange."""


class Method(Protocol):
    """How workers learn together."""

    module: nn.Module
    """What the forward pass goes through."""
    handle: Counted
    """What tells of the traffic."""
    shares_model: bool
    """Whether all ranks have the same model and need each other for every step."""

    def update(self) -> None:
        """Move the parameters, after a backward pass."""

    def evaluating(self) -> AbstractContextManager[None]:
        """Let the bare model be the one to test, as long as this lasts; every rank enters."""

    def state_dict(self) -> dict[str, Any]:
        """Return optimizer and residuals, of this rank."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; every rank does."""

    def close(self) -> None:
        """Close what was opened."""


class PlainTraffic:
    """What DDP without a hook sends, as far as that can be told: ring all-reduces of everything."""

    def __init__(self, model: nn.Module, num_ranks: int) -> None:
        numel = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        self._bytes_per_step = round(2 * (num_ranks - 1) / num_ranks * 4 * numel)
        self.num_steps = 0

    def __str__(self) -> str:
        return "plain DDP"

    def statistics(self) -> Any:
        """Return the totals so far."""
        sent = self.num_steps * self._bytes_per_step
        return SimpleNamespace(step=self.num_steps, wire_bytes=sent, dense_bytes=sent)


class WithDDP:
    """DDP, as PyTorch has it or with gradients that Headway averages.

    Args:
        model: The bare model.
        optimizer: Over its parameters.
        config: What Headway is to do; None leaves DDP as it is.
        group: The ranks.
    """

    shares_model = True

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, config: Adaptive | Fixed | None, group: dist.ProcessGroup
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._group = group
        self.module: nn.Module = DistributedDataParallel(model, process_group=group, **_KEEP_BUFFERS)
        self._hook = None if config is None else attach(self.module, config)
        self._traffic = PlainTraffic(model, dist.get_world_size(group))
        self.handle: Counted = self._hook or self._traffic

    def update(self) -> None:
        """Move the parameters."""
        self._optimizer.step()
        self._traffic.num_steps += 1

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Average floating buffers, such as those of batch norm."""
        average_buffers(self._model, self._group)
        yield

    def state_dict(self) -> dict[str, Any]:
        """Return the states of optimizer and hook."""
        hook = None if self._hook is None else self._hook.state_dict()
        return {"optimizer": self._optimizer.state_dict(), "hook": hook}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._optimizer.load_state_dict(state["optimizer"])
        if self._hook is not None:
            self._hook.load_state_dict(state["hook"])

    def close(self) -> None:
        """End the engine of the hook."""
        if self._hook is not None:
            self._hook.close()


class Gossiping:
    """Workers that mix models with their neighbours."""

    shares_model = False

    def __init__(self, model: nn.Module, optimizer: Optimizer, settings: Settings, group: dist.ProcessGroup) -> None:
        assert settings.gossip_algorithm is not None
        self.module = model
        self._optimizer = wrap(
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

    def update(self) -> None:
        """Move the parameters and mix."""
        self._optimizer.step()

    def evaluating(self) -> AbstractContextManager[None]:
        """Let the average of all models be the one to test."""
        return self._optimizer.averaged() if self._num_ranks > 1 else nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of optimizer and gossip."""
        return {"optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._optimizer.load_state_dict(state["optimizer"])

    def close(self) -> None:
        """End the connections."""
        self._optimizer.close()


def make_method(settings: Settings, model: nn.Module, optimizer: Optimizer, group: dist.ProcessGroup) -> Method:
    """Return the method that was asked for. Every rank of the group calls it."""
    if settings.gossip_algorithm is not None:
        return Gossiping(model, optimizer, settings, group)
    return WithDDP(model, optimizer, settings.hook_config, group)


def make_optimizer(settings: Settings, model: nn.Module) -> Optimizer:
    """Return the optimizer that was asked for."""
    lr, weight_decay = settings.chosen_lr, settings.weight_decay
    if settings.chosen_optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=settings.momentum, weight_decay=weight_decay)


@torch.no_grad()
def average_buffers(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Average the floating buffers of a model over all ranks, in one all-reduce."""
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if not buffers:
        return
    flat = torch.cat([buffer.flatten() for buffer in buffers])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    parts = torch.split(flat, [buffer.numel() for buffer in buffers])
    for buffer, part in zip(buffers, parts, strict=True):
        buffer.copy_(part.view_as(buffer))
