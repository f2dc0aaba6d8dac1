"""What frameworks hand over: is it a DDP model, and is the configuration one?"""

from __future__ import annotations

from typing import Any

from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from headway.ddp import Adaptive, Fixed


def find_ddp(model: Module | Any) -> DistributedDataParallel | None:
    """Return the DDP model, even if ``torch.compile`` lies around it; None if there is none."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, DistributedDataParallel) else None


def check_config(config: Adaptive | Fixed | Any) -> None:
    """Refuse now what `headway.attach` would refuse when training begins."""
    if config is not None and not isinstance(config, (Adaptive, Fixed)):
        kind = type(config).__name__
        raise ValueError(f"config is a {kind}, but must be a headway.Adaptive(...) or headway.Fixed(...)")
