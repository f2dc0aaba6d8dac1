"""What a user can ask of the hook."""

from __future__ import annotations

from dataclasses import dataclass

from headway.collectives.executor import DEFAULT_TIMEOUT_S
from headway.exchange import Plan
from headway.kernels import ValueFormat
from headway.network import Link


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """One plan for the whole run.

    Args:
        exchange: "dense", "allgather_topk", "star_topk", "var_topk", "layerwise_topk", "mstopk", "randomk" or
            "quantized".
        ratio: The share of entries sent, in (0, 1].
        algorithm: "auto", "native", or one of the exchange's collective. For sums: "ring", "tree",
            "recursive_doubling", "halving_doubling", "star", "one_shot", "two_shot". For gathers: "ring", "bruck",
            "recursive_doubling", "one_shot".
        broadcast: How the indices of "star_topk" and "var_topk" travel: "auto", "native", "tree", "scatter_gather",
            "chain", "one_shot", "two_shot".
        values: "fp32", "fp16" or "int8" on the wire.
        fusion: "bucket" (each as it comes), "step" (all of a step in one exchange) or "auto".
        bits: 8 or 4, of "quantized".
        link: The network, for what is "auto"; measured when the hook is made, and followed from then on, if not given.
        interval: Steps between councils, in which ranks combine what they have measured and follow the link; one in
            three at most, 0 for none. With ``link`` there are none either.
        seed: Of random numbers; the same on all ranks.
        timeout_s: How long a collective may take before ranks that do not answer are given up.
        debug: Compare what ranks do before each collective; by default only if ``HEADWAY_DEBUG=1``.
    """

    exchange: str = "dense"
    ratio: float = 0.01
    algorithm: str = "auto"
    broadcast: str = "auto"
    values: ValueFormat = "fp32"
    fusion: str = "auto"
    bits: int = 8
    link: Link | None = None
    interval: int = 10
    seed: int = 0
    timeout_s: float = DEFAULT_TIMEOUT_S
    debug: bool | None = None

    def __post_init__(self) -> None:
        _ = self.plan
        if self.link is not None and not isinstance(self.link, Link):
            raise ValueError(f"link is {self.link!r}, but must be a headway.Link(latency_s=..., bandwidth_bps=...)")
        if not (isinstance(self.timeout_s, (int, float)) and 0 < self.timeout_s < 1e9):
            raise ValueError(f"timeout_s is {self.timeout_s!r}, but must be a number of seconds above 0")
        if not (isinstance(self.interval, int) and self.interval >= 0):
            raise ValueError(f"interval is {self.interval!r}, but must be a number of steps, or 0 for no councils")
        if not isinstance(self.seed, int):
            raise ValueError(f"seed is {self.seed!r}, but must be an integer")

    @property
    def plan(self) -> Plan:
        """The plan this asks for."""
        return Plan(
            exchange=self.exchange,
            ratio=self.ratio,
            algorithm=self.algorithm,
            broadcast=self.broadcast,
            values=self.values,
            fusion=self.fusion,
            bits=self.bits,
        )
