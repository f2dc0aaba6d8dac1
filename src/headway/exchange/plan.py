"""A plan: what every rank does with the buckets of a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.collectives import ALGORITHMS, AUTO, NATIVE, Collective
from headway.compress import check_ratio
from headway.exchange.description import EXCHANGES, Description
from headway.kernels import VALUE_FORMATS, ValueFormat

FUSIONS = (AUTO, "bucket", "step")

Form = tuple[str, str, int]
"""Exchange, value format and bits: plans of one form compute alike and send entries alike, whatever their ratio."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The exchange, ratio, algorithm, value format and fusion in force at a step.

    Args:
        exchange: How a bucket gets averaged; a name in `headway.exchange.EXCHANGES`.
        ratio: The share of entries to send, c in (0, 1]; ignored by exchanges that send every entry.
        algorithm: The algorithm of the collective that moves the values; "auto" is the cheapest on the link in force.
        broadcast: The algorithm of the broadcast of indices, for exchanges that have one.
        values: The value format on the wire: "fp32", "fp16", "int8", "int4" or "sign", where the exchange supports it.
        fusion: "bucket" exchanges each bucket on its own, "step" all buckets of a step in one; "auto" is the cheaper.
        bits: The bit width, for exchanges that send codes.
    """

    exchange: str = "dense"
    ratio: float = 0.01
    algorithm: str = AUTO
    broadcast: str = AUTO
    values: ValueFormat = "fp32"
    fusion: str = AUTO
    bits: int = 8

    def __post_init__(self) -> None:
        _one_of("exchange", self.exchange, EXCHANGES)
        check_ratio(self.ratio)
        _one_of("algorithm", self.algorithm, (AUTO, NATIVE, *ALGORITHMS[self.collective]), f" of {self.exchange}")
        _one_of("broadcast", self.broadcast, (AUTO, NATIVE, *ALGORITHMS[Collective.BROADCAST]))
        _one_of("values", self.values, VALUE_FORMATS)
        _one_of("fusion", self.fusion, FUSIONS)
        if self.values not in self.description.value_formats:
            raise ValueError(f"values is {self.values!r}, but {self._why_not_values()}")
        known = self.description.bits or [bits for kind in EXCHANGES.values() for bits in kind.description.bits]
        if self.bits not in (known or [Plan.bits]):
            raise ValueError(f"bits is {self.bits}, but must be one of {', '.join(map(str, known))}")

    def _why_not_values(self) -> str:
        allowed, codes = self.description.value_formats, self.description.bits
        if codes:
            return f"{self.exchange} sends codes instead of values: use " + " or ".join(f"bits={b}" for b in codes)
        reason = " adds values on the way:" if self.collective is Collective.ALL_REDUCE else " does not send it:"
        return f"{self.exchange}{reason} use {' or '.join(map(repr, allowed))}"

    @property
    def description(self) -> Description:
        """The description of the exchange."""
        return EXCHANGES[self.exchange].description

    @property
    def collective(self) -> Collective:
        """The collective that moves the values."""
        return self.description.collective

    @property
    def sent_ratio(self) -> float:
        """The share of entries sent: 1 where the ratio does not count."""
        return self.ratio if self.description.uses_ratio else 1.0

    @property
    def keeps_memory(self) -> bool:
        """Whether something may stay in the residual, be it what the value format rounds away."""
        return self.description.keeps_memory or self.values != "fp32"

    @property
    def needs_link(self) -> bool:
        """Whether something is left to choose by cost."""
        return AUTO in (self.algorithm, self.fusion) or (self.description.broadcasts and self.broadcast == AUTO)

    @property
    def form(self) -> Form:
        """What computing time and gain depend on, besides the ratio."""
        return (self.exchange, self.values, self.bits if self.description.bits else 0)

    @property
    def label(self) -> str:
        """The plan in a few words.

        >>> Plan(exchange="star_topk", ratio=0.009, algorithm="halving_doubling", fusion="step").label
        'STAR top-k halving-doubling 0.9% (one exchange a step)'
        """
        parts = [self.description.label, self.algorithm.replace("_", "-")]
        if self.description.uses_ratio:
            parts.append(f"{self.ratio * 100:.2g}%")
        if self.description.bits:
            parts.append(f"{self.bits} bits")
        elif self.values != "fp32":
            parts.append(self.values)
        if self.fusion == "step":
            parts.append("(one exchange a step)")
        return " ".join(parts)


def _one_of(name: str, value: str, allowed: Iterable[str], owner: str = "") -> None:
    names = list(allowed)
    if value not in names:
        raise ValueError(f"{name}{owner} is {value!r}, but must be one of {', '.join(names)}")
