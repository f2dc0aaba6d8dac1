"""What the averager sees of the control loop: records go in, plans come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headway.compress import Shape
from headway.exchange.costs import CostModel
from headway.exchange.plan import Plan
from headway.exchange.records import ExchangeRecord
from headway.kernels import GainCurve


class GainCurves(NamedTuple):
    """The gain curves of a bucket: of the gradient alone, and of its sum with the residual."""

    gradient: GainCurve
    total: GainCurve


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """How the buckets of a step are averaged; the same on all ranks."""

    plan: Plan
    """With its fusion decided as soon as the buckets are known."""
    costs: CostModel
    """Predicts costs on the link in force: by these, algorithms that are "auto" are chosen."""
    is_measured: bool = False
    """Whether exchanges run one after the other, so that each can be timed."""
    takes_curves: bool = False
    """Whether the gain curves of all buckets are taken."""


class Controller(Protocol):
    """Decides how each step is averaged. All ranks make the same calls at the same steps, from one thread."""

    def begin_step(self, step: int) -> None:
        """Prepare a step: adopt what was decided for it, and start a control round if one is due."""

    def set_buckets(self, shapes: Sequence[Shape], arrivals_s: Sequence[float]) -> None:
        """Learn the buckets of the model and when each arrives in backward, within a step; again after a resume."""

    def await_plan(self) -> None:
        """Wait for the plan for buckets that have just been set: it holds in the same step."""

    @property
    def current(self) -> StepPlan:
        """How to average the buckets of this step."""

    def observe(self, record: ExchangeRecord, curves: GainCurves | None = None) -> None:
        """Take in what an exchange did, with the gain curves of its bucket if they were taken."""

    def end_step(self, last_arrival_s: float) -> None:
        """Take in that all exchanges of the step are over.

        Args:
            last_arrival_s: When backward handed over the last bucket, on this rank's clock.
        """
