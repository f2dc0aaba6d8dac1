"""What Headway needs to know of the model: the names of its parameters, its buffers, and how DDP wraps it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal
from weakref import ref

from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from headway.exchange import BUFFERS_EVERY, BucketLayout

_COMPILED = "_orig_mod."
"""What ``torch.compile`` puts into the names of parameters."""
_IGNORED = "_ddp_params_and_buffers_to_ignore"
"""Where DDP looks for the names of what it is to leave alone."""
_TAKEN_OVER = "_headway_averages_buffers"
"""Marks a DDP model whose buffers an earlier handle has taken over."""
_logger = logging.getLogger("headway")

Buffers = Literal["average", "ddp"]


def find_ddp(module: Module) -> DistributedDataParallel | None:
    """Return the DDP model, even if ``torch.compile`` has wrapped it; None if there is none."""
    inner = getattr(module, "_orig_mod", module)
    return inner if isinstance(inner, DistributedDataParallel) else None


class Model:
    """The model whose gradients are averaged.

    Args:
        module: The model or its DDP wrapper, compiled or not. Without it parameters are numbered in the order in which
            they are first seen, and buffers are DDP's.
    """

    def __init__(self, module: Module | None) -> None:
        ddp = None if module is None else find_ddp(module)
        self._ddp = None if ddp is None else ref(ddp)  # it holds the hook, and with it this: no cycle, or it stays
        inner = module if ddp is None else ddp.module
        ignored = getattr(inner, _IGNORED, ()) if ddp is None else ddp.parameters_to_ignore
        named = {} if inner is None else _averaged_parameters(inner, frozenset(ignored))
        self.parameters = {name: parameter.numel() for name, parameter in named.items()}
        """The sizes of the parameters that DDP averages, by name."""
        self.tensors = list(named.values())
        """These parameters themselves."""
        self._name_of = {id(parameter): name for name, parameter in named.items()}

    def name_of(self, parameter: Tensor) -> str:
        """Return the name of a parameter, the same whether the model is compiled or not."""
        return self._name_of.setdefault(id(parameter), str(len(self._name_of)))

    def layout_of(self, parameters: Sequence[Tensor], entry_bytes: int) -> BucketLayout:
        """Return the layout of a bucket of these parameters."""
        names = tuple(self.name_of(parameter) for parameter in parameters)
        return BucketLayout(names, tuple(parameter.numel() for parameter in parameters), entry_bytes)

    @property
    def ddp(self) -> DistributedDataParallel | None:
        """The DDP model, if it is known and still there."""
        return None if self._ddp is None else self._ddp()

    @property
    def may_skip_parameters(self) -> bool:
        """Whether a step may leave parameters unused."""
        return self.ddp is not None and self.ddp.find_unused_parameters

    def leave_buffers(self) -> None:
        """Let DDP broadcast the buffers, as it does by itself, even if an earlier handle had stopped that."""
        ddp = self.ddp
        if ddp is None:
            return
        if hasattr(ddp, _TAKEN_OVER):
            ddp.broadcast_buffers = True
            delattr(ddp, _TAKEN_OVER)
        if ddp.broadcast_buffers and ddp.modules_buffers:
            _logger.info("DDP broadcasts %d buffers before every forward pass", len(ddp.modules_buffers))

    def take_over_buffers(self) -> None:
        """Stop DDP's broadcast of the buffers, if any are floating-point numbers."""
        ddp = self._ddp_with_buffers
        if ddp is None or not any(buffer.is_floating_point() for buffer in ddp.modules_buffers):
            return
        ddp.broadcast_buffers = False
        setattr(ddp, _TAKEN_OVER, True)
        _logger.info(
            "%d buffers are averaged every %d steps; DDP no longer broadcasts buffers before every forward pass "
            '(buffers="ddp" would keep its way)',
            len(self.buffers_to_average()),
            BUFFERS_EVERY,
        )

    def buffers_to_average(self) -> dict[str, Tensor]:
        """Return the floating-point buffers that are saved with the model, by name.

        Those that are not saved, such as caches and masks, follow from something else on every rank, and may be large.
        """
        ddp = self._ddp_with_buffers
        if ddp is None:
            return {}
        ddp._assign_modules_buffers()  # type: ignore[no-untyped-call]  # some may have been replaced
        unsaved = _unsaved_buffers(ddp.module)
        return {
            name.replace(_COMPILED, ""): buffer
            for name, buffer in ddp.named_module_buffers.items()
            if buffer.is_floating_point() and name not in unsaved
        }

    @property
    def _ddp_with_buffers(self) -> DistributedDataParallel | None:
        """The DDP model, unless it broadcasts no buffers, or does so by a hook of the user's own."""
        ddp = self.ddp
        if ddp is None or hasattr(ddp, "buffer_hook") or not (ddp.broadcast_buffers or hasattr(ddp, _TAKEN_OVER)):
            return None
        return ddp


def _unsaved_buffers(module: Module) -> set[str]:
    """Return the names of the buffers that were registered with ``persistent=False``."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, each in module.named_modules()
        for name in each._non_persistent_buffers_set
    }


def _averaged_parameters(module: Module, ignored: frozenset[str]) -> dict[str, Tensor]:
    return {
        name.replace(_COMPILED, ""): parameter
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and name not in ignored
    }
