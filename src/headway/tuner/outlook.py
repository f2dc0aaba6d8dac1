"""What every choice would take, and which is best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from headway.collectives import NATIVE
from headway.compress import Shape
from headway.exchange import EXCHANGES, CostModel, ExchangeCost, Plan
from headway.tuner.grid import candidates

RANDOM = "randomk"
"""Sends no indices, so it is faster than any top-k, and learns least: time alone must not choose it."""


@dataclass(frozen=True)
class Option:
    """A plan and what it takes."""

    plan: Plan
    cost: ExchangeCost


class Outlook:
    """All options for one gradient, at one ratio.

    Args:
        model: Foretells exchanges.
        shape: The gradient's, all of it in one exchange.
        ratio: The share of entries sent, where it counts.
        exchanges: Which to look at.
    """

    def __init__(
        self, model: CostModel, shape: Shape, ratio: float, exchanges: Iterable[str] = tuple(EXCHANGES)
    ) -> None:
        self.ratio = ratio
        self.options: Sequence[Option] = [Option(plan, model.of(plan, shape)) for plan in candidates(ratio, exchanges)]

    @cached_property
    def best_of_each(self) -> dict[str, Option]:
        """By exchange, with its fastest algorithm; the fastest exchange first."""
        ranked = sorted(self.options, key=lambda option: option.cost.seconds)
        best: dict[str, Option] = {}
        for option in ranked:
            best.setdefault(option.plan.exchange, option)
        return best

    @property
    def best(self) -> Option:
        """The fastest, random-k aside."""
        return self._ranking[0]

    @property
    def second_best(self) -> Option:
        """The fastest of another exchange, random-k aside."""
        return self._ranking[1]

    @property
    def _ranking(self) -> list[Option]:
        return [option for name, option in self.best_of_each.items() if name != RANDOM]

    @property
    def plain(self) -> Option:
        """What DDP does without a hook."""
        wanted = replace(self.options[0].plan, exchange="dense", algorithm=NATIVE)
        return next(option for option in self.options if option.plan == wanted)
