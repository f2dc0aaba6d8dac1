"""The settings of local steps, checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from headway.collectives import AUTO
from headway.local.outer import Outer, Plain
from headway.tuner import Adaptive, Fixed, Pace, paces_between

MOST_STEPS = 64
"""The most local steps that "auto" chooses."""


@dataclass(frozen=True, kw_only=True)
class LocalSettings:
    """The options of `headway.local.wrap`, where they are explained."""

    steps: int | Literal["auto"] = AUTO
    config: Adaptive | Fixed | Any = field(default_factory=Adaptive)
    overlap: bool | int = True
    outer: Outer = field(default_factory=Plain)
    residual_decay: float = 1.0
    on_loss: Literal["raise", "continue"] = "raise"

    def __post_init__(self) -> None:
        steps = self.steps
        if steps != AUTO and (type(steps) is not int or steps < 1):
            raise ValueError(f"steps is {steps!r}, but must be a number of steps, 1 or more, or {AUTO!r}")
        if not isinstance(self.config, (Adaptive, Fixed)):
            kind = type(self.config).__name__
            raise ValueError(f"config is a {kind}, but must be a headway.Adaptive(...) or headway.Fixed(...)")
        if not isinstance(self.overlap, int) or self.overlap < 0:
            raise ValueError(f"overlap is {self.overlap!r}, but must be True, False or a number of steps")
        if type(self.overlap) is int and steps != AUTO and self.overlap > steps:
            raise ValueError(f"overlap is {self.overlap}, but an average can be at most steps={steps} late")
        if not callable(getattr(self.outer, "apply", None)):
            raise ValueError(f"outer is {self.outer!r}, but must be headway.local.Plain() or Nesterov()")
        if not (isinstance(self.residual_decay, (int, float)) and 0 < self.residual_decay <= 1):
            raise ValueError(f"residual_decay is {self.residual_decay!r}, but must be above 0 and at most 1")
        if self.on_loss not in ("raise", "continue"):
            raise ValueError(f"on_loss is {self.on_loss!r}, but must be 'raise' or 'continue'")
        if self.outer.has_momentum and not self.sends_all:
            raise ValueError(
                "outer momentum pushes twice what error feedback sends late: use it with "
                "headway.Fixed(exchange='dense'), or headway.local.Plain() with compression"
            )
        is_followed = self.config.interval > 0 and getattr(self.config, "link", None) is None
        if len(self.paces) > 1 and not is_followed:
            raise ValueError(
                "steps and delay can be chosen live only where the network is followed: give steps= and "
                "overlap=False or a number, or a config without link= and with an interval above 0"
            )

    @property
    def sends_all(self) -> bool:
        """Whether differences are sent whole, as values."""
        return isinstance(self.config, Fixed) and not self.config.plan.keeps_memory

    @property
    def paces(self) -> tuple[Pace, ...]:
        """The paces to choose from; the first is that of the first round."""
        least, most = (1, MOST_STEPS) if self.steps == AUTO else (self.steps, self.steps)
        if type(self.overlap) is bool:
            return tuple(paces_between(least, most, may_overlap=self.overlap))
        delays = paces_between(least, most, may_overlap=False)
        return tuple(Pace(steps, min(self.overlap, steps)) for steps, _ in delays)
