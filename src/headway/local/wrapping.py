"""`headway.local.wrap`: the one line in a training script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from headway.averaging import Averaging
from headway.collectives import AUTO, Members
from headway.elastic import Meetings
from headway.exchange import BucketLayout, CostModel
from headway.local.optimizer import LocalOptimizer
from headway.local.outer import Outer, Plain
from headway.local.regrouping import Regrouping
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
    on_loss: Literal["raise", "continue"] = "raise",
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
        on_loss: What to do when ranks are lost: raise `headway.PeerLost`, or go on with the others. A rank that is
            started again is let in then, and gets the common model: see `headway.elastic.init_process_group`.
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
        on_loss=on_loss,
    )
    moved = moved_parameters(model, optimizer, "local steps")
    parameters = FlatView(moved.values(), "parameter")
    layout = BucketLayout(tuple(moved), tuple(parameter.numel() for parameter in moved.values()))
    buffers = StagedBuffers(
        lambda: {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}
    )
    averaged = {id(parameter) for parameter in moved.values()}
    unmoved: list[Tensor] = [parameter for parameter in model.parameters() if id(parameter) not in averaged]
    unmoved += [buffer for buffer in model.buffers() if not buffer.is_floating_point()]

    def average_among(members: Members, before: Averaging | None, costs: CostModel | None) -> Averaging:
        return Averaging(
            settings.config,
            group=members,
            same_everywhere=(shape_of(model, moved), *_described(settings.outer), residual_decay, on_loss),
            find_buffers=lambda: buffers.copies,
            buffers_every=1,
            paces=settings.paces,
            before=before,
            costs=costs,
        )

    def wrapped(averaging: Averaging) -> LocalOptimizer:
        return LocalOptimizer(optimizer, averaging, parameters, layout, buffers, settings, regrouping, unmoved)

    members = Members.of(group)
    regrouping = None
    if settings.on_loss == "continue":
        if dist.get_backend(group) != "gloo":
            raise ValueError("on_loss='continue' needs a Gloo group: others cannot be made again without lost ranks")
        regrouping = Regrouping(Meetings(members, settings.config.timeout_s), average_among)
    if regrouping is not None and regrouping.is_back:
        return _let_in(regrouping, wrapped)
    averaging = average_among(members, None, None)
    try:
        make_equal(averaging.executor, [*model.parameters(), *model.buffers()])
        buffers.adopt()
        return wrapped(averaging)
    except BaseException:
        averaging.cut_off()
        raise


def _let_in(regrouping: Regrouping, wrapped: Callable[[Averaging], LocalOptimizer]) -> LocalOptimizer:
    """Return the optimizer of a rank that was away, once the others have let it in."""
    made: list[LocalOptimizer] = []

    def settle(averaging: Averaging) -> None:
        made[:] = [wrapped(averaging)]
        made[0].join()

    regrouping.regroup(None, None, settle)
    return made[0]


def _described(outer: Outer) -> tuple[str, object]:
    """Return what an outer optimizer is, for comparing it with those of other ranks."""
    return type(outer).__name__, getattr(outer, "__dict__", None)
