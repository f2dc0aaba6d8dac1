"""A plan: what every rank does with the buckets of a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headway.collectives import ALGORITHMS, AUTO, NATIVE, Collective
from headway.compress import check_ratio
from headway.exchange.description import EXCHANGES, Description
from headway.kernels import VALUE_FORMATS, ValueFormat

FUSIONS = (AUTO, "bucket", "step")

Form = tuple[str, str, int]
"""Exchange, value format and bits: plans of one form compute alike and send entries alike, whatever their ratio."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The exchange, ratio, algorithm, value format, fusion and pace in force at a step.

    Args:
        exchange: How a bucket gets averaged; a name in `headway.exchange.EXCHANGES`.
        ratio: The share of entries to send, c in (0, 1]; ignored by exchanges that send every entry.
        algorithm: The algorithm of the collective that moves the values; "auto" is the cheapest on the link in force.
        broadcast: The algorithm of the broadcast of indices, for exchanges that have one.
        values: The value format on the wire: "fp32", "fp16", "int8", "int4" or "sign", where the exchange supports it.
        fusion: "bucket" exchanges each bucket on its own, "step" all buckets of a step in one; "auto" is the cheaper.
        bits: The bit width, for exchanges that send codes.
        local_steps: Steps from one exchange to the next, H; above 1 with `headway.local` only.
        delay: After how many of these steps the average is applied, while it travels; 0 waits for it.
    """

    exchange: str = "dense"
    ratio: float = 0.01
    algorithm: str = AUTO
    broadcast: str = AUTO
    values: ValueFormat = "fp32"
    fusion: str = AUTO
    bits: int = 8
    local_steps: int = 1
    delay: int = 0

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
        if type(self.local_steps) is not int or self.local_steps < 1:
            raise ValueError(f"local_steps is {self.local_steps!r}, but must be a number of steps, 1 or more")
        if type(self.delay) is not int or not 0 <= self.delay <= self.local_steps:
            raise ValueError(f"delay is {self.delay!r}, but must be between 0 and local_steps, {self.local_steps}")

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
    def without_pace(self) -> Plan:
        """The same plan for every step."""
        return self if self.local_steps == 1 and self.delay == 0 else replace(self, local_steps=1, delay=0)

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
        if self.local_steps > 1:
            parts = [each for each in parts if not each.startswith("(")] + [f"every {self.local_steps} steps"]
        if self.delay:
            parts.append(f"applied {self.delay} late")
        return " ".join(parts)


def _one_of(name: str, value: str, allowed: Iterable[str], owner: str = "") -> None:
    names = list(allowed)
    if value not in names:
        raise ValueError(f"{name}{owner} is {value!r}, but must be one of {', '.join(names)}")
