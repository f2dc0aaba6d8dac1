"""Tensors of a state as copies on the CPU, which ``torch.load(weights_only=True)`` reads."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def copied(state: Any) -> Any:
    """Return a state, which may be nested dicts, with every tensor in it as a copy on the CPU."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    return {name: copied(value) for name, value in state.items()} if isinstance(state, dict) else state
