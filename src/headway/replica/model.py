"""A model without DDP and its optimizer: which parameters move, and what all ranks must have in common."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from headway.collectives import Executor
from headway.replica.wrapped import WrappedOptimizer

_BROADCAST = "scatter_gather"


def moved_parameters(model: Module | Any, optimizer: Optimizer | Any, way: str) -> dict[str, Parameter]:
    """Return the parameters that the optimizer moves, by name, in the model's order; frozen ones are left out.

    Args:
        model: The bare model.
        optimizer: An optimizer of parameters of the model, not wrapped yet.
        way: The way of training that takes the place of DDP, for error messages.
    """
    if not isinstance(model, Module) or not isinstance(optimizer, Optimizer):
        kinds = f"{type(model).__name__} and {type(optimizer).__name__}"
        raise ValueError(f"wrap takes a model and its optimizer, in this order, not {kinds}")
    if isinstance(model, DistributedDataParallel):
        raise ValueError(f"{way} takes the place of DistributedDataParallel: give the bare model")
    if isinstance(optimizer, WrappedOptimizer):
        raise ValueError("this optimizer is wrapped already: wrap the inner one")
    ours = dict(model.named_parameters())
    given = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if foreign := len(given - {id(parameter) for parameter in ours.values()}):
        raise ValueError(f"the optimizer moves {foreign} parameters that are not the model's")
    return {name: p for name, p in ours.items() if id(p) in given and p.requires_grad}


def shape_of(model: Module, moved: Iterable[str]) -> int:
    """Return a number by which ranks find out whether they have the same model and move the same parameters."""
    tensors: list[tuple[str, Tensor]] = [*model.named_parameters(), *model.named_buffers()]
    described = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in tensors]
    return zlib.crc32(repr((described, list(moved))).encode())


def check_agreement(executor: Executor, what: str, number: int) -> None:
    """Raise on all ranks if a number is not the same on all."""
    numbers = executor.all_gather(torch.tensor([number])).flatten().tolist()
    others = [rank for rank, theirs in enumerate(numbers) if theirs != numbers[0]]
    if others:
        raise ValueError(f"ranks {others} have another {what} than rank 0: give the same to all")


def make_equal(executor: Executor, tensors: Sequence[Tensor], source: int = 0) -> None:
    """Copy the tensors of one rank to all ranks, and check that the same bits have arrived."""
    parts = [tensor.detach().cpu().contiguous().view(-1).view(torch.uint8) for tensor in tensors]
    whole = torch.cat(parts)
    executor.broadcast(whole, source, _BROADCAST)
    with torch.no_grad():
        for tensor, part in zip(tensors, torch.split(whole, [part.numel() for part in parts]), strict=True):
            tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))
    check_agreement(executor, "model", zlib.crc32(whole.numpy().tobytes()))
