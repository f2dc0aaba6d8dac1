"""Published recipes, with the figures of their papers."""

from __future__ import annotations

from typing import Any

from torch.nn import Module
from torch.optim import Optimizer

from headway.local.optimizer import LocalOptimizer
from headway.local.outer import Nesterov
from headway.local.wrapping import wrap
from headway.tuner import Fixed


def DiLoCo(
    model: Module, optimizer: Optimizer, *, steps: int = 500, lr: float = 0.7, momentum: float = 0.9, **options: Any
) -> LocalOptimizer:
    """Wrap an optimizer as DiLoCo does: dense differences, and Nesterov momentum across rounds (arXiv 2311.08105).

    Args:
        model: The bare model.
        optimizer: Its optimizer; AdamW in the paper.
        steps: Steps between exchanges; the paper has 500, others 30 to 100.
        lr: Outer learning rate.
        momentum: Outer momentum.
        **options: More options of `headway.local.wrap`.
    """
    options = {"config": Fixed(exchange="dense"), "overlap": False, **options}
    return wrap(model, optimizer, steps, outer=Nesterov(lr, momentum), **options)


def SparseLoCo(
    model: Module,
    optimizer: Optimizer,
    *,
    steps: int = 30,
    ratio: float = 64 / 4096,
    residual_decay: float = 0.95,
    **options: Any,
) -> LocalOptimizer:
    """Wrap an optimizer as SparseLoCo does: top-k of differences, and no outer momentum (arXiv 2508.15706).

    The paper takes the largest 64 of each 4,096 entries, in 2 bits; this takes as many of all, in 4 bits.

    Args:
        model: The bare model.
        optimizer: Its optimizer; AdamW in the paper.
        steps: Steps between exchanges.
        ratio: The share of entries to send.
        residual_decay: What of a residual is kept from round to round.
        **options: More options of `headway.local.wrap`.
    """
    config = Fixed(exchange="allgather_topk", ratio=ratio, values="int4")
    options = {"config": config, "overlap": False, **options}
    return wrap(model, optimizer, steps, residual_decay=residual_decay, **options)
