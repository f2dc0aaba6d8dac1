"""Headway keeps PyTorch data-parallel training moving over networks that are slow, far apart or keep changing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headway._version import __version__
from headway.errors import HeadwayError, LabError, MessageError, MismatchError, PeerLost

if TYPE_CHECKING:
    from headway import (
        collectives,
        compress,
        elastic,
        exchange,
        gossip,
        integrations,
        kernels,
        lab,
        local,
        network,
        report,
        tuner,
    )
    from headway.ddp import Adaptive, Fixed, HookState, Statistics, attach, hook
    from headway.exchange import ExchangeRecord, Plan
    from headway.network import Link, NetworkView
    from headway.tuner import Decision

__all__ = [
    "Adaptive",
    "Decision",
    "ExchangeRecord",
    "Fixed",
    "HeadwayError",
    "HookState",
    "LabError",
    "Link",
    "MessageError",
    "MismatchError",
    "NetworkView",
    "PeerLost",
    "Plan",
    "Statistics",
    "__version__",
    "attach",
    "collectives",
    "compress",
    "elastic",
    "exchange",
    "gossip",
    "hook",
    "integrations",
    "kernels",
    "lab",
    "local",
    "network",
    "report",
    "tuner",
]

_ROOM_OF = {
    **dict.fromkeys(("Adaptive", "Fixed", "HookState", "Statistics", "attach", "hook"), "ddp"),
    **dict.fromkeys(("ExchangeRecord", "Plan"), "exchange"),
    **dict.fromkeys(("Link", "NetworkView"), "network"),
    "Decision": "tuner",
}


def __getattr__(name: str) -> Any:
    """Import a room when it is first used: the command line must not wait for torch where it does not need it."""
    if name in _ROOM_OF:
        return getattr(import_module(f"headway.{_ROOM_OF[name]}"), name)
    if name in __all__:
        return import_module(f"headway.{name}")
    raise AttributeError(f"module 'headway' has no attribute {name!r}")
