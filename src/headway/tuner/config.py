"""The configurations of a control loop: a fixed plan, or one that is chosen live."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from headway.collectives import ALGORITHMS, AUTO
from headway.collectives.executor import DEFAULT_TIMEOUT_S
from headway.exchange import EXCHANGES, Plan, default_candidates
from headway.kernels import GAIN_RATIOS, ValueFormat
from headway.network import Link
from headway.tuner.candidates import WarmUp, all_plans, ratios_between
from headway.tuner.policies import Policy, policy_of


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """One plan for the whole run.

    Args:
        exchange: "dense", "allgather_topk", "star_topk", "var_topk", "layerwise_topk", "mstopk", "randomk",
            "quantized", or another one that is registered.
        ratio: The share of entries to send, in (0, 1].
        algorithm: "auto", "native", or one of the exchange's collective. For all-reduce: "ring", "tree",
            "recursive_doubling", "halving_doubling", "star", "one_shot", "two_shot". For all-gather: "ring", "bruck",
            "recursive_doubling", "one_shot".
        broadcast: How the indices of "star_topk" and "var_topk" are broadcast: "auto", "native", "tree",
            "scatter_gather", "chain", "one_shot", "two_shot".
        values: The value format on the wire: "fp32", "fp16", "int8", "int4" or "sign".
        fusion: "bucket" (each on its own), "step" (all buckets of a step in one exchange) or "auto".
        bits: The bit width of "quantized": 8 or 4.
        link: The network, by which "auto" is decided. If not given, it is measured when the hook is made, and followed
            from then on.
        interval: Steps between control rounds, in which ranks combine their measurements and follow the link; at most
            one in three steps, 0 for none. With ``link`` there are none either.
        seed: The seed of random numbers; the same on all ranks.
        timeout_s: How long a rank may give no sign of life before it counts as lost. One that is alive, but busy, is
            waited for as long as torch would.
        debug: Whether to compare what ranks do before each collective; by default only if ``HEADWAY_DEBUG=1``.
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
        if not (isinstance(self.interval, int) and self.interval >= 0):
            raise ValueError(
                f"interval is {self.interval!r}, but must be a number of steps, or 0 for no control rounds"
            )
        _check_common(self.seed, self.timeout_s)

    @property
    def plan(self) -> Plan:
        """The plan."""
        return Plan(
            exchange=self.exchange,
            ratio=self.ratio,
            algorithm=self.algorithm,
            broadcast=self.broadcast,
            values=self.values,
            fusion=self.fusion,
            bits=self.bits,
        )

    @property
    def plans(self) -> list[Plan]:
        """The plans to choose from: one, or if the fusion is left open one of each."""
        fusions = ("bucket", "step") if self.fusion == AUTO else (self.fusion,)
        return [replace(self.plan, fusion=fusion) for fusion in fusions]

    @property
    def fingerprint(self) -> int:
        """A number that is the same for configurations that agree in all that must be the same on all ranks."""
        return _fingerprint(self.plan, self.link, self.seed, self.interval)


@dataclass(frozen=True, kw_only=True)
class Adaptive:
    """The plan is chosen live, from what the network and the gradients are like.

    Args:
        policy: "balanced" (the least time to the same loss), "fast" (the shortest step that still learns), "accurate"
            (the shortest step that sends most of the gradient), "goodput", "knee", or a callable that takes a
            `headway.tuner.Front` and returns a score for each of its plans.
        min_ratio: The least share of entries to send.
        max_ratio: The largest share of entries to send, short of all of them.
        exchanges: The names of the exchanges to choose from; "dense" is always one of them. By default those whose
            description says so.
        warm_up: How many times as long as entries wait in the residual, about 1/gain steps, training must have lasted:
            ratios below ``max_ratio`` need a gain of ``warm_up / (step + 1)``, or of 0.5. 0 for no warm-up.
        interval: Steps between thorough control rounds, in which latency is measured well and gain curves are taken;
            more while nothing changes, fewer when something does. Brief ones are held every third step.
        journal: A file to which rank 0 writes its decisions, a line of JSON each.
        seed: The seed of random numbers; the same on all ranks.
        timeout_s: How long a rank may give no sign of life before it counts as lost. One that is alive, but busy, is
            waited for as long as torch would.
        debug: Whether to compare what ranks do before each collective; by default only if ``HEADWAY_DEBUG=1``.

    >>> len(Adaptive(exchanges=("allgather_topk",)).plans)
    662
    """

    policy: str | Policy = "balanced"
    min_ratio: float = 0.001
    max_ratio: float = 0.1
    exchanges: tuple[str, ...] = field(default_factory=default_candidates)
    warm_up: float = 2.0
    interval: int = 10
    journal: Path | str | None = None
    seed: int = 0
    timeout_s: float = DEFAULT_TIMEOUT_S
    debug: bool | None = None

    def __post_init__(self) -> None:
        policy_of(self.policy)
        ratios = (self.min_ratio, self.max_ratio)
        are_numbers = all(isinstance(ratio, (int, float)) for ratio in ratios)
        if not (are_numbers and GAIN_RATIOS[0] <= self.min_ratio <= self.max_ratio <= 1):
            raise ValueError(
                f"min_ratio is {self.min_ratio!r} and max_ratio {self.max_ratio!r}, but it must be "
                f"{GAIN_RATIOS[0]:g} <= min_ratio <= max_ratio <= 1"
            )
        if not (isinstance(self.exchanges, tuple) and all(name in list(EXCHANGES) for name in self.exchanges)):
            raise ValueError(f"exchanges is {self.exchanges!r}, but must be some of {', '.join(EXCHANGES)}, in a tuple")
        if type(self.warm_up) not in (int, float) or not 0 <= self.warm_up < math.inf:
            raise ValueError(f"warm_up is {self.warm_up!r}, but must be a number, 0 (no warm-up) or more; try 2")
        if type(self.interval) is not int or self.interval < 1:
            raise ValueError(f"interval is {self.interval!r}, but must be a number of steps, 1 or more")
        if self.journal is not None and not isinstance(self.journal, (str, Path)):
            raise ValueError(f"journal is {self.journal!r}, but must be a path")
        _check_common(self.seed, self.timeout_s)

    @cached_property
    def plans(self) -> list[Plan]:
        """The plans to choose from, the same on all ranks."""
        exchanges = dict.fromkeys(("dense", *self.exchanges))
        return all_plans(ratios_between(self.min_ratio, self.max_ratio), exchanges)

    @property
    def warm_up_rule(self) -> WarmUp:
        """Which plans are allowed at a step."""
        return WarmUp(max_ratio=self.max_ratio, strength=self.warm_up)

    @property
    def fingerprint(self) -> int:
        """As that of `Fixed`; the policy may differ, since only rank 0 uses it."""
        return _fingerprint(self.plans, float(self.warm_up), self.seed, self.interval)


def _fingerprint(*parts: object) -> int:
    """Return a number for parts of a configuration, and for the algorithms that "auto" chooses from."""
    algorithms = {collective.value: list(known) for collective, known in ALGORITHMS.items()}
    return zlib.crc32(repr((parts, algorithms)).encode())


def _check_common(seed: int, timeout_s: float) -> None:
    if not (isinstance(timeout_s, (int, float)) and 0 < timeout_s < 1e9):
        raise ValueError(f"timeout_s is {timeout_s!r}, but must be a number of seconds above 0")
    if not isinstance(seed, int):
        raise ValueError(f"seed is {seed!r}, but must be an integer")
