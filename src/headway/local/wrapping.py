"""`headway.local.wrap`: the one line in a training script."""

from __future__ import annotations

from typing import Literal

import torch.distributed as dist
from torch.nn import Module
from torch.optim import Optimizer

from headway.averaging import Averaging
from headway.collectives import AUTO
from headway.exchange import BucketLayout
from headway.local.optimizer import LocalOptimizer
from headway.local.outer import Outer, Plain
from headway.local.settings import LocalSettings
from headway.local.staged_buffers import StagedBuffers
from headway.replica import FlatView, make_equal, moved_parameters, shape_of
from headway.tuner import Adaptive, Fixed


def wrap(
    model: Module,
    optimizer: Optimizer,
    steps: int | Literal["auto"] = AUTO,
    *,
    config: Adaptive | Fixed | None = None,
    overlap: bool | int = True,
    outer: Outer | None = None,
    residual_decay: float = 1.0,
    group: dist.ProcessGroup | None = None,
) -> LocalOptimizer:
    """Train with several steps between exchanges: return an optimizer that averages differences every so often.

    Every rank calls it, with a model of the same shape and without DDP; all models start as that of rank 0.

    Args:
        model: The bare model.
        optimizer: Any optimizer over parameters of the model. Its state, such as Adam's moments, stays local.
        steps: Steps from one exchange to the next, H, or "auto" to choose them live with everything else.
        config: How differences are averaged: `headway.Adaptive`, the default, chooses exchange, ratio and format live;
            `headway.Fixed` has them fixed. Error feedback keeps what is not sent.
        overlap: Whether the next steps may be taken while an exchange is under way: True if it pays, False never, a
            number to apply every average that many steps late.
        outer: What becomes of the common model: `Plain`, the default, or `Nesterov` with dense differences.
        residual_decay: What of a residual is kept from round to round; 1 keeps all of it.
        group: Ranks that take part; all by default.

    Returns:
        The optimizer: also ``plan``, ``history``, ``records``, ``network``, ``statistics()``, ``average_()``,
        ``averaged()``, ``state_dict()``, ``load_state_dict()`` and ``close()``.
    """
    settings = LocalSettings(
        steps=steps,
        config=Adaptive() if config is None else config,
        overlap=overlap,
        outer=Plain() if outer is None else outer,
        residual_decay=residual_decay,
    )
    moved = moved_parameters(model, optimizer, "local steps")
    parameters = FlatView(moved.values(), "parameter")
    if not dist.is_initialized():
        raise ValueError("there is no process group: call torch.distributed.init_process_group first")
    buffers = StagedBuffers(
        lambda: {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}
    )
    averaging = Averaging(
        settings.config,
        group=group,
        same_everywhere=(shape_of(model, moved), *_described(settings.outer), settings.residual_decay),
        find_buffers=lambda: buffers.copies,
        buffers_every=1,
        paces=settings.paces,
    )
    try:
        make_equal(averaging.executor, [*model.parameters(), *model.buffers()])
        buffers.adopt()
        layout = BucketLayout(tuple(moved), tuple(parameter.numel() for parameter in moved.values()))
        return LocalOptimizer(optimizer, averaging, parameters, layout, buffers, settings)
    except BaseException:
        averaging.cut_off()
        raise


def _described(outer: Outer) -> tuple[str, object]:
    """Return what an outer optimizer is, for comparing it with those of other ranks."""
    return type(outer).__name__, getattr(outer, "__dict__", None)
