"""Headway keeps PyTorch data-parallel training moving over networks that are slow, far apart or keep changing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headway.errors import HeadwayError, LabError, MessageError, MismatchError, PeerLost

if TYPE_CHECKING:
    from headway import collectives, kernels, lab

__version__ = "0.1.0.dev0"

__all__ = [
    "HeadwayError",
    "LabError",
    "MessageError",
    "MismatchError",
    "PeerLost",
    "__version__",
    "collectives",
    "kernels",
    "lab",
]


def __getattr__(name: str) -> Any:
    """Import a room when it is first used: the command line must not wait for torch where it does not need it."""
    if name in ("collectives", "kernels", "lab"):
        return import_module(f"headway.{name}")
    raise AttributeError(f"module 'headway' has no attribute {name!r}")
