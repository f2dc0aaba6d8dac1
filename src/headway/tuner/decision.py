"""A decision: what was known, what was chosen, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from headway.exchange import Plan
from headway.network import Link
from headway.tuner.front import Front

CAUSES = ("start", "latency", "bandwidth", "gain", "pace", "warm-up")
"""What makes plans be looked at anew: training starts, the link has moved, the gain has, steps take another time than
was foretold, or the warm-up allows smaller ratios."""

EXCHANGE_NAMES = {
    "dense": "dense",
    "allgather_topk": "all-gather top-k",
    "star_topk": "STAR top-k",
    "var_topk": "VAR top-k",
    "layerwise_topk": "layerwise top-k",
    "mstopk": "MSTopk",
    "randomk": "random-k",
    "quantized": "quantized",
}
"""The exchanges, as words have them."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One look at all plans; the same on all ranks, except that the front is known to rank 0 alone."""

    step: int
    """From which it holds."""
    cause: str
    before: Plan
    plan: Plan
    link_before: Link
    """At the last decision."""
    link: Link
    own_s: float
    """A step beside the exchange."""
    step_s: float
    """A step with the plan, as foretold."""
    step_s_before: float
    """A step with the plan before, on the link as it is now."""
    gain: float
    gain_before: float
    """Of the plan before, as it is now foretold."""
    promised_gain: float
    """Of the plan before, when it was chosen; NaN if it was not."""
    realised_gain: float
    """Of the plan before, as it came; NaN if nothing is known of it."""
    slope: float
    """What a small ratio sends in the long run, over the ratio, as learned so far: see `headway.tuner.GainModel`."""
    gain_curve: tuple[float, ...]
    """At `headway.kernels.GAIN_RATIOS`; NaN as long as none is known."""
    front: Front | None = None

    @property
    def is_switch(self) -> bool:
        """Whether the plan is another one."""
        return self.plan != self.before

    @property
    def words(self) -> str:
        """The decision in a sentence."""
        if not self.is_switch:
            return f"step {self.step}: {self._why}: stay with {describe(self.plan)}"
        return (
            f"step {self.step}: {self._why}: {describe(self.before)} -> {describe(self.plan)} "
            f"(step {_ms(self.step_s_before)} -> {_ms(self.step_s)}, gain {self.gain_before:.2g} -> {self.gain:.2g})"
        )

    @property
    def _why(self) -> str:
        if self.cause == "latency":
            return f"latency {_moved(self.link_before.latency_s, self.link.latency_s, 1e3, 'ms')}"
        if self.cause == "bandwidth":
            return f"bandwidth {_moved(self.link_before.bandwidth_bps, self.link.bandwidth_bps, 1e-6, 'Mbps')}"
        told = {
            "start": "training starts",
            "gain": "the gain has changed",
            "pace": "steps take another time than foretold",
            "warm-up": "the warm-up allows smaller ratios",
        }
        return told[self.cause]

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain data, for a log."""
        said: dict[str, Any] = {
            "step": self.step,
            "words": self.words,
            "cause": self.cause,
            "before": vars(self.before),
            "plan": vars(self.plan),
            "link_before": vars(self.link_before),
            "link": vars(self.link),
        }
        numbers = ("own_s", "step_s", "step_s_before", "gain", "gain_before", "promised_gain", "realised_gain")
        said |= {name: _or_none(getattr(self, name)) for name in (*numbers, "slope")}
        said["gain_curve"] = [_or_none(gain) for gain in self.gain_curve]
        if self.front is not None:
            columns = (self.front.plans, self.front.compress_s, self.front.sync_s, self.front.gain)
            rows = zip(*columns, strict=True)
            said["front"] = [
                {**vars(plan), "compress_s": float(a), "sync_s": float(b), "gain": float(c)} for plan, a, b, c in rows
            ]
        return said


def describe(plan: Plan) -> str:
    """Return a plan in a few words.

    >>> describe(Plan(exchange="star_topk", ratio=0.009, algorithm="halving_doubling", fusion="step"))
    'STAR top-k halving-doubling 0.9% (one exchange a step)'
    """
    parts = [EXCHANGE_NAMES[plan.exchange], plan.algorithm.replace("_", "-")]
    if plan.sends_some:
        parts.append(f"{plan.ratio * 100:.2g}%")
    if plan.exchange == "quantized":
        parts.append(f"{plan.bits} bits")
    elif plan.values != "fp32":
        parts.append(plan.values)
    if plan.fusion == "step":
        parts.append("(one exchange a step)")
    return " ".join(parts)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


def _moved(before: float, after: float, factor: float, unit: str) -> str:
    verb = "fell" if after < before else "rose"
    return f"{verb} from {before * factor:.3g} to {after * factor:.3g} {unit}"


def _or_none(number: float) -> float | None:
    return number if math.isfinite(number) else None
