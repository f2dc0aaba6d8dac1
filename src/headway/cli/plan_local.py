"""``headway plan``: the predicted cost of local steps, several of which share one exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.cli.plan_gossip import cost_as_json
from headway.network import Cost
from headway.tuner import Front, Option, Pace, Pacing

LOCAL_STEPS = (1, 8, 32)


@dataclass(frozen=True)
class LocalOption:
    """An exchange every H steps, which wait for it."""

    local_steps: int
    cost: Cost
    """A step's share of the exchange."""
    effort: float
    """How many steps it takes to learn as much as in one that all ranks take together: see `headway.tuner.Pacing`."""


def local_options(best: Option) -> Sequence[LocalOption]:
    """Return the cost of an exchange at several paces."""
    front = Front([best.plan], np.zeros(1), np.array([best.cost.seconds]), np.ones(1), own_s=0.0)
    efforts = [float(Pacing().at(front, Pace(local_steps)).effort[0]) for local_steps in LOCAL_STEPS]
    return [
        LocalOption(local_steps, _share_of(best.cost, local_steps), effort)
        for local_steps, effort in zip(LOCAL_STEPS, efforts, strict=True)
    ]


def _share_of(cost: Cost, num_steps: int) -> Cost:
    return Cost(
        latency_s=cost.latency_s / num_steps,
        bandwidth_s=cost.bandwidth_s / num_steps,
        overhead_s=cost.overhead_s / num_steps,
        compute_s=cost.compute_s / num_steps,
        wire_bytes=cost.wire_bytes // num_steps,
    )


def as_json(option: LocalOption) -> dict[str, Any]:
    """Return plain data."""
    return {"local_steps": option.local_steps, **cost_as_json(option.cost), "effort": option.effort}


def note_on(options: Sequence[LocalOption]) -> str:
    """Return what local steps are, and what they cost in learning."""
    efforts = ", ".join(f"{each.effort:.2g}x at H = {each.local_steps}" for each in options if each.local_steps > 1)
    return (
        "local: the best exchange every H steps, without overlap; ranks drift apart meanwhile, so that to learn as "
        f"much takes more steps, by a rule of thumb {efforts}"
    )
