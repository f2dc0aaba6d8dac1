"""A plan: what every rank does with the buckets of a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.collectives import ALGORITHMS, NATIVE, Collective
from headway.compress import check_ratio
from headway.kernels import VALUE_FORMATS, ValueFormat

AUTO = "auto"
FUSIONS = ("auto", "bucket", "step")
QUANTIZED_BITS = (8, 4)

COLLECTIVE_OF = {
    "dense": Collective.ALL_REDUCE,
    "allgather_topk": Collective.ALL_GATHER,
    "star_topk": Collective.ALL_REDUCE,
    "var_topk": Collective.ALL_REDUCE,
    "layerwise_topk": Collective.ALL_GATHER,
    "mstopk": Collective.ALL_GATHER,
    "randomk": Collective.ALL_REDUCE,
    "quantized": Collective.ALL_GATHER,
}
"""The exchanges, and the collective that moves the values of each."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The exchange, ratio, algorithm, value format and fusion in force at a step.

    Args:
        exchange: How a bucket gets averaged; a name of `COLLECTIVE_OF`.
        ratio: The share of entries sent, c in (0, 1]; "dense" and "quantized" send all.
        algorithm: Of the all-reduce or all-gather that moves values; "auto" is the cheapest for the link in force.
        broadcast: Of the broadcast that moves the indices of "star_topk" and "var_topk".
        values: "fp32", "fp16" or "int8" on the wire. Sums are not taken of int8, and "quantized" has ``bits``.
        fusion: "bucket" exchanges each bucket as it comes, "step" all of a step in one; "auto" is the cheaper.
        bits: Of "quantized".
    """

    exchange: str = "dense"
    ratio: float = 0.01
    algorithm: str = AUTO
    broadcast: str = AUTO
    values: ValueFormat = "fp32"
    fusion: str = AUTO
    bits: int = 8

    def __post_init__(self) -> None:
        _one_of("exchange", self.exchange, COLLECTIVE_OF)
        check_ratio(self.ratio)
        _one_of("algorithm", self.algorithm, (AUTO, NATIVE, *ALGORITHMS[self.collective]), f" of {self.exchange}")
        _one_of("broadcast", self.broadcast, (AUTO, NATIVE, *ALGORITHMS[Collective.BROADCAST]))
        _one_of("values", self.values, VALUE_FORMATS)
        _one_of("fusion", self.fusion, FUSIONS)
        if self.values == "int8" and self.collective is Collective.ALL_REDUCE:
            raise ValueError(f"values is 'int8', but {self.exchange} adds values on the way: use 'fp16' or 'fp32'")
        if self.exchange == "quantized" and self.values != "fp32":
            raise ValueError(f"values is {self.values!r}, but quantized has codes for values: use bits=8 or bits=4")
        if self.bits not in QUANTIZED_BITS:
            raise ValueError(f"bits is {self.bits}, but must be one of {', '.join(map(str, QUANTIZED_BITS))}")

    @property
    def collective(self) -> Collective:
        """The collective that moves the values."""
        return COLLECTIVE_OF[self.exchange]

    @property
    def sends_some(self) -> bool:
        """Whether the ratio counts: dense and quantized send every entry."""
        return self.exchange not in ("dense", "quantized")

    @property
    def needs_link(self) -> bool:
        """Whether something is left to choose by cost."""
        broadcasts = self.exchange in ("star_topk", "var_topk")
        return AUTO in (self.algorithm, self.fusion) or (broadcasts and self.broadcast == AUTO)


def _one_of(name: str, value: str, allowed: Iterable[str], owner: str = "") -> None:
    names = list(allowed)
    if value not in names:
        raise ValueError(f"{name}{owner} is {value!r}, but must be one of {', '.join(names)}")


PLAIN = Plan(exchange="dense", algorithm=NATIVE, fusion="bucket")
"""What DDP does without a hook."""
