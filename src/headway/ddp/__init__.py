"""Headway in a DDP script: `attach`, or the state and hook for ``register_comm_hook``."""

from headway.averaging import Statistics
from headway.ddp.attaching import attach
from headway.ddp.hook_state import HookState, hook
from headway.tuner import Adaptive, Fixed

__all__ = ["Adaptive", "Fixed", "HookState", "Statistics", "attach", "hook"]
