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


class CodeGain(NamedTuple):
    """What codes of so many bits are expected to preserve of a gradient: see `headway.kernels.rounding_gain`."""

    bits: int
    gain: float


class GainCurves(NamedTuple):
    """The gain curves of a bucket: of the gradient alone, and of its sum with the residual."""

    gradient: GainCurve
    total: GainCurve
    codes: tuple[CodeGain, ...] = ()
    """The gains of codes of the gradient alone, where the tuner has asked for them."""


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
    awaits_buckets: bool = False
    """Whether the plan is yet to be chosen, once the buckets are known: then all of them wait for the last one."""
    code_bits: tuple[int, ...] = ()
    """The numbers of bits for which the gain of codes is taken along with the curves."""


class Controller(Protocol):
    """Decides how each step is averaged. All ranks make the same calls at the same steps, from one thread."""

    def begin_step(self, step: int) -> None:
        """Prepare a step: adopt what was decided for it, and start a control round if one is due."""

    def set_buckets(
        self, shapes: Sequence[Shape], arrivals_s: Sequence[float], curves: Sequence[GainCurves] = ()
    ) -> None:
        """Learn the buckets of the model, within a step: in the first one, when others are adopted, after a resume.

        Args:
            shapes: The shapes of the buckets, in order.
            arrivals_s: When each arrives in backward, after the first one.
            curves: The gain curve of each, if they were taken.
        """

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
