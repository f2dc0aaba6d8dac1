"""The cost of every way to average one gradient, and which is best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from headway.collectives import NATIVE
from headway.compress import Shape
from headway.exchange import CostModel, ExchangeCost, Plan
from headway.tuner.candidates import plans_at


@dataclass(frozen=True)
class Option:
    """A plan and its predicted cost."""

    plan: Plan
    cost: ExchangeCost


class Comparison:
    """All options for one gradient, at one ratio.

    Args:
        model: Predicts costs.
        shape: The shape of the gradient, which goes in one exchange.
        ratio: The share of entries sent, where it counts.
        exchanges: The exchanges to compare; all by default.
    """

    def __init__(self, model: CostModel, shape: Shape, ratio: float, exchanges: Iterable[str] | None = None) -> None:
        self.ratio = ratio
        self.options: Sequence[Option] = [Option(plan, model.of(plan, shape)) for plan in plans_at(ratio, exchanges)]

    @cached_property
    def best_of_each(self) -> dict[str, Option]:
        """The option with the fastest algorithm of each exchange, the fastest exchange first."""
        ranked = sorted(self.options, key=lambda option: option.cost.seconds)
        best: dict[str, Option] = {}
        for option in ranked:
            best.setdefault(option.plan.exchange, option)
        return best

    @property
    def best(self) -> Option:
        """The fastest of those that can be recommended."""
        return self._recommendable[0]

    @property
    def second_best(self) -> Option:
        """The fastest of another exchange that can be recommended."""
        return self._recommendable[1]

    @property
    def _recommendable(self) -> list[Option]:
        return [option for option in self.best_of_each.values() if option.plan.description.is_candidate]

    @property
    def plain(self) -> Option:
        """What DDP does without a hook."""
        wanted = replace(self.options[0].plan, exchange="dense", algorithm=NATIVE)
        return next(option for option in self.options if option.plan == wanted)
