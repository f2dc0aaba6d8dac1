"""The state of local steps as plain data, which ``torch.load(weights_only=True)`` reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from headway.local.rounds import Rounds
from headway.replica import copied

FORMAT = 2


def save(rounds: Rounds) -> dict[str, Any]:
    """Return models, residuals and counters, as copies."""
    return {"format": FORMAT, **copied(rounds.as_data())}


def load(rounds: Rounds, state_dict: Mapping[str, Any], inner: Optimizer) -> None:
    """Continue from a state. If that of any rank does not fit, all raise `ValueError`."""
    rounds.averaging.engine.drain()
    try:
        reason = _misfit(rounds, state_dict, inner)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"the state is damaged ({type(error).__name__}: {error})"
    num_steps = -1 if reason is not None else int(state_dict["local"]["num_steps"])
    steps = rounds.averaging.executor.all_gather(torch.tensor([num_steps])).flatten().tolist()
    others = [rank for rank, theirs in enumerate(steps) if theirs != max(steps)]
    if reason is None and others:
        reason = f"the state of rank {others[0]} does not fit, or is of another step"
    if reason is not None:
        raise ValueError(reason)
    state = state_dict["local"]
    rounds.averaging.load_state_dict(state["averaging"], rounds.sizes, strict=True)
    rounds.load(state)
    inner.load_state_dict(state_dict["optimizer"])


def _misfit(rounds: Rounds, state_dict: Any, inner: Optimizer) -> str | None:
    """Return why a state cannot be loaded; None if it can, as far as this rank sees."""
    state = state_dict.get("local") if isinstance(state_dict, Mapping) else None
    if (
        not isinstance(state, Mapping)
        or state.get("format") != FORMAT
        or not {"averaging", "model"} <= state.keys()
        or "optimizer" not in state_dict
    ):
        return "this is no state of a local optimizer of this version: load what its state_dict returned"
    saved = [len(group["params"]) for group in state_dict["optimizer"]["param_groups"]]
    own = [len(group["params"]) for group in inner.param_groups]
    if saved != own:
        return f"the state is of an optimizer with groups of {saved} parameters, not {own}"
    return rounds.misfit(state)
