"""The state of local steps as plain data, which ``torch.load(weights_only=True)`` reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headway.local.rounds import Rounds

FORMAT = 1
_FLAT = ("common", "base", "model")


def save(rounds: Rounds, num_steps: int) -> dict[str, Any]:
    """Return models, residuals and counters, as copies."""
    return {"format": FORMAT, "num_steps": num_steps, **_copied(rounds.state())}


def load(rounds: Rounds, state_dict: Mapping[str, Any], numel: int) -> int:
    """Continue from a state; return the number of steps. If that of any rank does not fit, all raise `ValueError`."""
    reason, num_steps = _misfit(state_dict, numel), -1
    if reason is None:
        num_steps = int(state_dict["local"]["num_steps"])
    steps = rounds.averaging.executor.all_gather(torch.tensor([num_steps])).flatten().tolist()
    others = [rank for rank, theirs in enumerate(steps) if theirs != max(steps)]
    if reason is None and others:
        reason = f"the state of rank {others[0]} does not fit, or is of another step"
    if reason is not None:
        raise ValueError(reason)
    state = state_dict["local"]
    rounds.averaging.load_state_dict(state["averaging"], rounds.parameters, strict=True)
    rounds.load(state)
    return num_steps


def _misfit(state_dict: Any, numel: int) -> str | None:
    """Return why a state cannot be loaded; None if it can, as far as this rank sees."""
    state = state_dict.get("local") if isinstance(state_dict, Mapping) else None
    if not isinstance(state, Mapping) or state.get("format") != FORMAT or "optimizer" not in state_dict:
        return "this is no state of a local optimizer of this version: load what its state_dict returned"
    for name in _FLAT:
        flat = state.get(name)
        if not isinstance(flat, Tensor) or flat.numel() != numel:
            found = f"{flat.numel():,}" if isinstance(flat, Tensor) else "no"
            return f"the state is of another model: {name!r} has {found} parameters, not {numel:,}"
    missing = [
        name
        for name in ("averaging", "velocity", "moved", "difference", "pace", "num_since", "buffers", "num_steps")
        if name not in state
    ]
    return f"the state is damaged: it has no {missing[0]!r}" if missing else None


def _copied(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    return {name: _copied(value) for name, value in state.items()} if isinstance(state, dict) else state
