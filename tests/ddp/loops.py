"""Training loops as people write them; each is given what makes a model data-parallel, and yields it after every step.

A loop is written once and run under plain DDP, under Headway and under the test's own hook: nothing in it knows which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from tests.ddp.training import batch, loss_of, mlp

NUM_STEPS = 8


class Parallelise(Protocol):
    """Wraps a model in DDP, with or without a hook."""

    def __call__(
        self, model: nn.Module, *, scaler: torch.amp.GradScaler | None = None, **options: Any
    ) -> nn.parallel.DistributedDataParallel: ...


Loop = Callable[[Parallelise], Iterator[nn.Module]]
"""Yields the model after every step."""
LOOPS: dict[str, Loop] = {}


def loop(function: Loop) -> Loop:
    """Put a loop into the list."""
    LOOPS[function.__name__] = function
    return function


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def plain_steps(ddp: nn.Module, num_steps: int = NUM_STEPS) -> Iterator[nn.Module]:
    """The loop of every tutorial."""
    optimizer = sgd(ddp)
    for step in range(num_steps):
        optimizer.zero_grad()
        loss_of(ddp, step).backward()
        optimizer.step()
        yield ddp


def decay(model: nn.Module) -> Tensor:
    """In single precision: entries of a gradient in half precision are often equal, and of these any may be sent."""
    return 1e-3 * sum(parameter.square().sum() for parameter in model.parameters())


@loop
def autocast_bf16(parallelise: Parallelise) -> Iterator[nn.Module]:
    ddp = parallelise(mlp())
    optimizer = sgd(ddp)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(ddp, step)
        (loss + decay(ddp)).backward()
        optimizer.step()
        yield ddp


@loop
def scaler_fp16(parallelise: Parallelise) -> Iterator[nn.Module]:
    """The first steps overflow in half precision, on some ranks only; later the scale grows again."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**19, growth_interval=3)
    ddp = parallelise(mlp(), scaler=scaler)
    optimizer = sgd(ddp)
    for step in range(2 * NUM_STEPS):
        optimizer.zero_grad()
        inputs, targets = batch(dist.get_rank(), step)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = ddp(inputs * 2.0 ** (2 * dist.get_rank()))
        scaler.scale(nn.functional.cross_entropy(logits.float(), targets) + decay(ddp)).backward()
        scaler.step(optimizer)
        scaler.update()
        yield ddp


@loop
def accumulation(parallelise: Parallelise) -> Iterator[nn.Module]:
    ddp = parallelise(mlp())
    optimizer = sgd(ddp)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        with ddp.no_sync():
            for part in range(2):
                loss_of(ddp, 3 * step + part).backward()
        loss_of(ddp, 3 * step + 2).backward()
        optimizer.step()
        yield ddp


@loop
def clipping(parallelise: Parallelise) -> Iterator[nn.Module]:
    ddp = parallelise(mlp())
    optimizer = sgd(ddp)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        loss_of(ddp, step).backward()
        nn.utils.clip_grad_norm_(ddp.parameters(), 0.1)
        optimizer.step()
        yield ddp


@loop
def two_optimizers(parallelise: Parallelise) -> Iterator[nn.Module]:
    ddp = parallelise(mlp())
    *body, weight, bias = ddp.parameters()
    optimizers = [torch.optim.SGD(body, lr=0.05), torch.optim.AdamW([weight, bias], lr=0.01)]
    for step in range(NUM_STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(ddp, step).backward()
        for optimizer in optimizers:
            optimizer.step()
        yield ddp


@loop
def ema(parallelise: Parallelise) -> Iterator[nn.Module]:
    ddp = parallelise(mlp())
    optimizer = sgd(ddp)
    average = AveragedModel(ddp.module, avg_fn=lambda old, new, _: 0.9 * old + 0.1 * new)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        loss_of(ddp, step).backward()
        optimizer.step()
        average.update_parameters(ddp.module)
        yield average


class Recomputing(nn.Module):
    """Recomputes its activations in backward."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second = nn.Linear(20, 64), nn.Linear(64, 5)
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        run = nn.Sequential(self.first, nn.ReLU(), self.second)
        return checkpoint(run, x.requires_grad_(), use_reentrant=self.use_reentrant)


def recompute(parallelise: Parallelise, *, use_reentrant: bool) -> Iterator[nn.Module]:
    ddp = parallelise(Recomputing(use_reentrant=use_reentrant))
    yield from plain_steps(ddp)


@loop
def activation_checkpointing(parallelise: Parallelise) -> Iterator[nn.Module]:
    return recompute(parallelise, use_reentrant=False)


@loop
def reentrant_checkpointing(parallelise: Parallelise) -> Iterator[nn.Module]:
    return recompute(parallelise, use_reentrant=True)


@loop
def static_graph_with_accumulation(parallelise: Parallelise) -> Iterator[nn.Module]:
    ddp = parallelise(mlp(), static_graph=True)
    optimizer = sgd(ddp)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        if step >= 1:  # DDP itself wants the first iteration of a static graph to be an ordinary one
            with ddp.no_sync():
                loss_of(ddp, 100 + step).backward()
        loss_of(ddp, step).backward()
        optimizer.step()
        yield ddp


@loop
def frozen_then_unfrozen_backbone(parallelise: Parallelise) -> Iterator[nn.Module]:
    """DDP knows the parameters that need gradients when it wraps: an unfrozen model is wrapped again."""
    model = mlp()
    for freeze in (True, False):
        model[0].requires_grad_(not freeze)
        ddp = parallelise(model)
        optimizer = torch.optim.SGD([p for p in ddp.parameters() if p.requires_grad], lr=0.05)
        for step in range(NUM_STEPS):
            optimizer.zero_grad()
            loss_of(ddp, step).backward()
            optimizer.step()
            yield ddp


class Tied(nn.Module):
    """The last layer has the weight of the first, transposed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.bias = nn.Linear(20, 40), nn.Parameter(torch.zeros(20))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(torch.tanh(self.first(x)), self.first.weight.T, self.bias)[:, :5]


@loop
def weight_tying(parallelise: Parallelise) -> Iterator[nn.Module]:
    ddp = parallelise(Tied())
    yield from plain_steps(ddp)


@loop
def gradient_as_bucket_view(parallelise: Parallelise) -> Iterator[nn.Module]:
    ddp = parallelise(mlp(), gradient_as_bucket_view=True)
    yield from plain_steps(ddp)


@loop
def uneven_data_with_join(parallelise: Parallelise) -> Iterator[nn.Module]:
    """Rank 1 has two batches more. Ranks are compared when both have joined."""
    ddp = parallelise(mlp())
    optimizer = sgd(ddp)
    with Join([ddp]):
        for step in range(NUM_STEPS + 2 * dist.get_rank()):
            optimizer.zero_grad()
            loss_of(ddp, step).backward()
            optimizer.step()
    yield ddp


@loop
def last_smaller_batch(parallelise: Parallelise) -> Iterator[nn.Module]:
    ddp = parallelise(mlp())
    optimizer = sgd(ddp)
    for step in range(NUM_STEPS):
        inputs, targets = batch(dist.get_rank(), step)
        size = 8 if step % 4 < 3 else 3
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(inputs[:size]), targets[:size]).backward()
        optimizer.step()
        yield ddp


@loop
def evaluation_on_rank_0_alone(parallelise: Parallelise) -> Iterator[nn.Module]:
    """Of a model with batch norm, while the other ranks go on."""
    torch.manual_seed(6)
    ddp = parallelise(nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 5)))
    optimizer = sgd(ddp)
    for step in range(NUM_STEPS):
        ddp.train()
        optimizer.zero_grad()
        loss_of(ddp, step).backward()
        optimizer.step()
        if step % 3 == 2 and dist.get_rank() == 0:
            ddp.eval()
            with torch.no_grad():
                loss_of(ddp.module, 500)
        yield ddp


class Forking(nn.Module):
    """One of three branches takes part, the same on all ranks: the other two are used by none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.branches = nn.ModuleList([nn.Linear(20, 40) for _ in range(3)])
        self.head = nn.Linear(40, 5)
        self.turn = 0

    def forward(self, x: Tensor) -> Tensor:
        self.turn += 1
        return self.head(self.branches[self.turn % 3](x))


@loop
def parameters_that_no_rank_uses(parallelise: Parallelise) -> Iterator[nn.Module]:
    ddp = parallelise(Forking(), find_unused_parameters=True)
    yield from plain_steps(ddp, 3 * NUM_STEPS)
