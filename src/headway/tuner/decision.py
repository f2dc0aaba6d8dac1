"""A decision: what was known, what was chosen, and why; and the log of decisions."""

from __future__ import annotations

import json
import logging
import math
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from headway.exchange import Plan
from headway.kernels import GAIN_RATIOS
from headway.network import Link
from headway.tuner.codec import AtMost
from headway.tuner.front import Front

_LOGGER = logging.getLogger("headway")

Cause = Literal["start", "latency", "bandwidth", "gain", "pace", "warm-up", "agreement", "rarer"]
"""Why plans are compared: training starts, the link has moved, the gain has moved, steps take another time than
predicted, the warm-up allows smaller ratios, ranks that step by themselves agree more or less, or exchanges may become
rarer still."""


GainsOnGrid = Annotated[tuple[float, ...], AtMost(len(GAIN_RATIOS))]
"""Gains at `headway.kernels.GAIN_RATIOS`; empty if not known."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One comparison of all plans; the same on all ranks, except that only rank 0 knows the front."""

    step: int
    """The first step for which it holds."""
    cause: Cause
    before: Plan
    plan: Plan
    link_before: Link
    """The link at the last decision."""
    link: Link
    own_s: float
    """The time of a step without its exchange."""
    step_s: float
    """The predicted time of a step with the plan."""
    step_s_before: float
    """The predicted time of a step with the plan before, on the present link."""
    gain: float
    gain_before: float
    """The predicted gain of the plan before."""
    promised_gain: float
    """The gain that was predicted for the plan before when it was chosen; NaN if it was not chosen."""
    realised_gain: float
    """The measured gain of the plan before; NaN if not known."""
    slope: float
    """What a small ratio sends in the long run over the ratio, as learned so far: see `headway.tuner.GainModel`."""
    gain_curve: GainsOnGrid
    front: Front | None = field(default=None, metadata={"is_sent": False})

    @property
    def is_switch(self) -> bool:
        """Whether the plan has changed."""
        return self.plan != self.before

    @property
    def words(self) -> str:
        """The decision in a sentence."""
        if not self.is_switch:
            return f"step {self.step}: {self._why}: stay with {self.plan.label}"
        return (
            f"step {self.step}: {self._why}: {self.before.label} -> {self.plan.label} "
            f"(step {_ms(self.step_s_before)} -> {_ms(self.step_s)}, gain {self.gain_before:.2g} -> {self.gain:.2g})"
        )

    @property
    def _why(self) -> str:
        if self.cause == "latency":
            return f"latency {_moved(self.link_before.latency_s, self.link.latency_s, 1e3, 'ms')}"
        if self.cause == "bandwidth":
            return f"bandwidth {_moved(self.link_before.bandwidth_bps, self.link.bandwidth_bps, 1e-6, 'Mbps')}"
        reasons = {
            "start": "training starts",
            "gain": "the gain has changed",
            "pace": "steps do not take the predicted time",
            "agreement": "ranks agree more or less than before",
            "rarer": "talking more rarely has paid so far",
            "warm-up": "the warm-up allows smaller ratios",
        }
        return reasons[self.cause]

    def as_dict(self) -> dict[str, Any]:
        """Return the decision as plain data, for a log."""
        numbers = ("own_s", "step_s", "step_s_before", "gain", "gain_before", "promised_gain", "realised_gain", "slope")
        content: dict[str, Any] = {
            "step": self.step,
            "words": self.words,
            "cause": self.cause,
            "before": plan_as_dict(self.before),
            "plan": plan_as_dict(self.plan),
            "link_before": vars(self.link_before),
            "link": vars(self.link),
            **{name: _or_none(getattr(self, name)) for name in numbers},
            "gain_curve": [_or_none(gain) for gain in self.gain_curve],
        }
        if self.front is not None:
            columns = (self.front.plans, self.front.compress_s, self.front.sync_s, self.front.gain)
            content["front"] = [
                {**plan_as_dict(plan), "compress_s": float(a), "sync_s": float(b), "gain": float(c)}
                for plan, a, b, c in zip(*columns, strict=True)
            ]
        return content


def plan_as_dict(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain data, with its label for people."""
    return {**vars(plan), "label": plan.label}


class DecisionLog:
    """Writes decisions to a file as they are made, and logs each in plain words to the logger "headway".

    Args:
        path: The file to append to, a line of JSON for each decision; None for the logger alone.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self._path = None if path is None else Path(path)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a"):
                pass  # a file that cannot be written is reported now, and not at the first decision

    def write(self, decision: Decision) -> None:
        """Write a decision."""
        _LOGGER.info("%s", decision.words)
        if self._path is None:
            return
        try:
            with self._path.open("a") as lines:
                lines.write(json.dumps(decision.as_dict()) + "\n")
        except OSError as error:  # training goes on without the file
            warnings.warn(f"decisions are no longer written to {self._path}: {error}", stacklevel=2)
            self._path = None


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


def _moved(before: float, after: float, factor: float, unit: str) -> str:
    verb = "fell" if after < before else "rose"
    return f"{verb} from {before * factor:.3g} to {after * factor:.3g} {unit}"


def _or_none(number: float) -> float | None:
    return number if math.isfinite(number) else None
