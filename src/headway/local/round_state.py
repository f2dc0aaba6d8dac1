"""Where a rank stands between two steps: the common model, what it has moved since, and the exchange under way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headway.replica import FlatView
from headway.tuner import Pace

NEW = -1
"""The number of rounds of a rank that does not have the common model yet."""


@dataclass
class RoundState:
    """The state of a rank's rounds, but for its residual, its buffers and the model itself."""

    common: Tensor
    """The model that all ranks have in common, after the last round that was applied."""
    velocity: Tensor | None
    """That of the outer optimizer, if it has one."""
    base: Tensor
    """Where the steps began that the next exchange will send; the model as it was then."""
    moved: Tensor
    """What this rank has moved before the exchange under way."""
    pace: Pace
    difference: Tensor | None = None
    """The exchange under way: what was moved, and in the end the average over ranks."""
    residual_before: Tensor | None = None
    """The residual as it was before the exchange under way, to go back to if ranks are lost."""
    num_since: int = 0
    """Steps since the last exchange began."""
    num_rounds: int = 0
    """How many averages the common model has taken."""
    num_steps: int = 0
    """How many steps were taken; the same on all ranks at an exchange."""

    @classmethod
    def at_start(cls, model: Tensor, pace: Pace, *, has_velocity: bool) -> RoundState:
        """Return the state before the first step."""
        velocity = torch.zeros_like(model) if has_velocity else None
        return cls(model, velocity, base=model.clone(), moved=torch.empty_like(model), pace=pace)

    def put(self, model: Tensor, parameters: FlatView) -> None:
        """Put a model in place whose steps since the last exchange start from the common one."""
        parameters.write(model)
        if parameters.is_exact:
            self.base.copy_(self.common)
        else:  # 16-bit parameters round what they are given: that is no step of this rank
            self.base.copy_(self.common - (model - parameters.new()))

    def as_data(self) -> dict[str, Any]:
        """Return all that the next steps depend on."""
        return {
            "common": self.common,
            "velocity": self.velocity,
            "base": self.base,
            "moved": self.moved if self.difference is not None else None,
            "difference": self.difference,
            "pace": list(self.pace),
            "num_since": self.num_since,
            "num_steps": self.num_steps,
            "num_rounds": self.num_rounds,
        }

    def misfit(self, data: Mapping[str, Any]) -> str | None:
        """Return why what `as_data` and the model gave on another rank or run does not fit; None if it does."""
        numel = self.common.numel()
        _ = Pace(*data["pace"]), [int(data[f"num_{what}"]) for what in ("since", "steps", "rounds")]
        for name in ("common", "base", "model", "velocity", "moved", "difference"):
            flat = data[name]
            if flat is None and name in ("moved", "difference"):
                continue
            if (flat is None) != (name == "velocity" and self.velocity is None):
                return f"the state was made with another outer optimizer, or is damaged: {name!r}"
            if flat is not None and flat.numel() != numel:
                return f"the state is of another model: {name!r} has {flat.numel():,} parameters, not {numel:,}"
        return None

    def load(self, data: Mapping[str, Any]) -> None:
        """Restore what `as_data` returned."""
        self.common.copy_(data["common"])
        self.base.copy_(data["base"])
        if self.velocity is not None:
            self.velocity.copy_(data["velocity"])
        self.difference = None if data["difference"] is None else data["difference"].to(self.common.device)
        if self.difference is not None:
            self.moved.copy_(data["moved"])
        self.pace = Pace(*data["pace"])
        self.num_since, self.num_steps, self.num_rounds = (
            int(data[f"num_{what}"]) for what in ("since", "steps", "rounds")
        )
