"""What an exchange says of itself, and the register of all exchanges.

Whatever needs to know something of an exchange reads its `Description`: validation of plans, candidates of the tuner,
costs, gains, command line, reports. A new exchange is one class and one call of `register`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from headway.collectives import Collective
from headway.kernels import ValueFormat

if TYPE_CHECKING:
    from headway.exchange.base import Exchange


class GainRule(Enum):
    """How the gain of an exchange follows from the gain curve of the gradient."""

    CURVE = "curve"
    """It sends the largest entries: gain = factor · curve(ratio)."""
    RATIO = "ratio"
    """It sends any entries: gain = ratio."""
    ALL = "all"
    """It sends every entry: gain = factor, and for codes factor · what rounding to their bits should preserve."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """The facts about an exchange.

    Args:
        name: The name in plans, such as "star_topk".
        label: The name for people, such as "STAR top-k".
        summary: One sentence for help texts.
        collectives: The collectives of a run, in order; the last one moves the values.
        value_formats: The formats in which values can be sent.
        tuned_formats: Those of them that the tuner chooses from; by default all.
        bits: The bit widths to choose from, where entries are sent as codes.
        uses_ratio: Whether it sends a share of the entries, given by the plan's ratio.
        keeps_memory: Whether something of every gradient stays in the residual.
        takes_turns: Whether one rank at a time chooses the indices.
        gain_rule: How its gain follows from the gain curve.
        gain_factor: The gain over what the rule gives; with `GainRule.CURVE` and `GainRule.ALL` only until it has been
            measured.
        variant_of: Another exchange that takes about the same time, which stands for both in the regime map.
        is_candidate: Whether the tuner chooses from it by default, and `headway plan` may recommend it.
        max_error: The largest error of an average when all entries are sent, relative to the largest entry; 0 is exact
            to rounding. `headway doctor` checks it.
        hue: The hue of its colour in reports, from 0 to 1; None is grey.
    """

    name: str
    label: str
    summary: str
    collectives: tuple[Collective, ...]
    value_formats: tuple[ValueFormat, ...] = ("fp32",)
    tuned_formats: tuple[ValueFormat, ...] = ()
    bits: tuple[int, ...] = ()
    uses_ratio: bool = True
    keeps_memory: bool = True
    takes_turns: bool = False
    gain_rule: GainRule = GainRule.CURVE
    gain_factor: float = 1.0
    variant_of: str | None = None
    is_candidate: bool = True
    max_error: float = 0.0
    hue: float | None = None

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"the name of an exchange is {self.name!r}, but must be an identifier")
        if not (self.collectives and self.value_formats):
            raise ValueError(f"{self.name} must have at least one collective and one value format")
        if not set(self.tuned_formats) <= set(self.value_formats):
            raise ValueError(f"{self.name} has tuned_formats that are not among its value_formats")
        if not (self.hue is None or 0 <= self.hue <= 1):
            raise ValueError(f"the hue of {self.name} is {self.hue}, but must be from 0 to 1, or None for grey")
        if not 0 < self.gain_factor <= 1:
            raise ValueError(f"the gain_factor of {self.name} is {self.gain_factor}, but must be above 0 and at most 1")

    @property
    def collective(self) -> Collective:
        """The collective that moves the values."""
        return self.collectives[-1]

    @property
    def formats_to_choose(self) -> tuple[ValueFormat, ...]:
        """The formats that the tuner chooses from, the most exact one first."""
        return self.tuned_formats or self.value_formats

    @property
    def broadcasts(self) -> bool:
        """Whether a broadcast, of indices, comes before the values."""
        return Collective.BROADCAST in self.collectives[:-1]


_REGISTERED: dict[str, type[Exchange]] = {}
EXCHANGES: Mapping[str, type[Exchange]] = MappingProxyType(_REGISTERED)
"""All exchanges by name, in the order of registration."""

E = TypeVar("E", bound="type[Exchange]")


def register(exchange: E) -> E:
    """Make an exchange known by the name in its description; usable as a class decorator.

    All ranks register the same exchanges in the same order, before they make a plan that names one.

    Raises:
        ValueError: There is another exchange of that name.
    """
    name = exchange.description.name
    if _REGISTERED.get(name, exchange) is not exchange:
        raise ValueError(
            f"there is an exchange {name!r} already ({_REGISTERED[name].__qualname__}): choose another name"
        )
    _REGISTERED[name] = exchange
    return exchange


def unregister(name: str) -> None:
    """Forget an exchange; for tests, and for notebooks in which a class is defined again."""
    _REGISTERED.pop(name, None)


def default_candidates() -> tuple[str, ...]:
    """Return the exchanges that the tuner chooses from unless told otherwise."""
    return tuple(name for name, exchange in EXCHANGES.items() if exchange.description.is_candidate)
