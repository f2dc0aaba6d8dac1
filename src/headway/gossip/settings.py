"""What a user can ask of gossip, checked."""

from __future__ import annotations

import re
import warnings
import zlib
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from headway.collectives.executor import DEFAULT_TIMEOUT_S
from headway.compress import Contraction, FullPrecision, PlainCompressor, StochasticQuantizer
from headway.gossip.automatic import automatic_consensus_step, automatic_step, relative_error
from headway.gossip.base import Algorithm
from headway.gossip.choco import CHOCO
from headway.gossip.dcd import DCD
from headway.gossip.dpsgd import DPSGD
from headway.gossip.ecd import ECD
from headway.gossip.estimates import Accumulator, Estimates, Replicas
from headway.gossip.naive import Naive
from headway.gossip.topology import Topology

ALGORITHMS = ("dpsgd", "naive", "dcd", "ecd", "choco")
AUTO: Literal["auto"] = "auto"
MEMORIES = ("auto", "lean", "resilient")
DEFAULT_COMPRESSORS: dict[str, PlainCompressor | None] = {
    "dpsgd": None,
    "naive": StochasticQuantizer(bits=8),
    "dcd": StochasticQuantizer(bits=8),
    "ecd": StochasticQuantizer(bits=8, step="auto"),
    "choco": StochasticQuantizer(bits=4),
}
_MOST_REPLICAS = 4
_REBUILT = ("dpsgd", "naive")
"""Algorithms whose messages are models: the sum is made anew in every step, so that nobody needs a replica."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to gossip; see `headway.gossip.wrap` for what each means."""

    algorithm: str = "dcd"
    compressor: PlainCompressor | Literal["auto"] | None = AUTO
    consensus_step: float | None = None
    local_steps: int = 1
    memory: str = AUTO
    buffer_interval: int = 10
    seed: int = 0
    timeout_s: float = DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm is {self.algorithm!r}, but must be one of {', '.join(ALGORITHMS)}")
        if self.memory not in MEMORIES:
            raise ValueError(f"memory is {self.memory!r}, but must be one of {', '.join(MEMORIES)}")
        if self.consensus_step is not None and self.algorithm != "choco":
            raise ValueError(f"consensus_step is for choco, and {self.algorithm} has none: leave it out")
        step = self.consensus_step
        if step is not None and not (isinstance(step, (int, float)) and 0 < step <= 1):
            raise ValueError(f"consensus_step is {step!r}, but must be a number above 0 and at most 1")
        if type(self.local_steps) is not int or self.local_steps < 1:
            raise ValueError(f"local_steps is {self.local_steps!r}, but must be a number of steps, 1 or more")
        if type(self.buffer_interval) is not int or self.buffer_interval < 0:
            raise ValueError(
                f"buffer_interval is {self.buffer_interval!r}, but must be a number of steps, or 0 for never"
            )
        if not (isinstance(self.timeout_s, (int, float)) and 0 < self.timeout_s < 1e8):
            raise ValueError(f"timeout_s is {self.timeout_s!r}, but must be a number of seconds above 0")
        if not isinstance(self.seed, int):
            raise ValueError(f"seed is {self.seed!r}, but must be an integer")
        self._check_compressor()

    def _check_compressor(self) -> None:
        chosen = self.chosen_compressor
        if isinstance(chosen, (str, type)) or not (hasattr(chosen, "num_bytes") and hasattr(chosen, "is_unbiased")):
            raise ValueError(
                f"compressor is {chosen!r}, but must be one without a memory, such as StochasticQuantizer()"
            )
        if self.algorithm == "dpsgd" and not isinstance(chosen, FullPrecision):
            raise ValueError(
                "dpsgd sends models as they are: use dcd, ecd or choco with a compressor, or naive to see why"
            )
        if self.algorithm != "choco" and not chosen.is_unbiased:
            raise ValueError(f"{self.algorithm} needs an unbiased compressor, and {chosen} is not: use choco with it")
        if self.algorithm != "ecd" and getattr(chosen, "step", None) == AUTO:
            raise ValueError(f"step='auto' is for ecd: give a step, or None for one scale a block, to {self.algorithm}")
        if self.algorithm == "ecd" and not chosen.has_bounded_noise:
            raise ValueError(
                f"ecd extrapolates, so that its noise must not grow with what is sent: give StochasticQuantizer a "
                f"fixed step, or step='auto', instead of {chosen}"
            )

    @property
    def chosen_compressor(self) -> PlainCompressor:
        """The one that was given, or that the algorithm has by default."""
        given = DEFAULT_COMPRESSORS[self.algorithm] if self.compressor == AUTO else self.compressor
        return FullPrecision() if given is None else given

    def compressor_for(self, x: Tensor) -> PlainCompressor:
        """Return the compressor to use for a model: with a step, and for choco a contraction."""
        chosen = self.chosen_compressor
        if isinstance(chosen, StochasticQuantizer) and chosen.step == AUTO:
            chosen = replace(chosen, step=automatic_step(x, chosen.bits))
        if self.algorithm == "choco" and chosen.is_unbiased and not isinstance(chosen, FullPrecision):
            return Contraction(chosen)
        return chosen

    def make_algorithm(self, numel: int, device: torch.device, compressor: PlainCompressor) -> Algorithm:
        """Return the algorithm, for a model of so many parameters."""
        if self.algorithm == "choco":
            return CHOCO(numel, device, self.consensus_step or automatic_consensus_step(compressor))
        kinds: dict[str, Any] = {"dpsgd": DPSGD, "naive": Naive, "dcd": DCD, "ecd": ECD}
        algorithm: Algorithm = kinds[self.algorithm](numel, device)
        return algorithm

    def make_estimates(self, topology: Topology, rank: int, numel: int, device: torch.device) -> Estimates:
        """Return what keeps the neighbours' models: with replicas if there are few, or if they are wanted."""
        weights = {peer: float(topology.weights[rank, peer]) for peer in topology.neighbours[rank]}
        wanted = self.memory == "resilient" or (self.memory == AUTO and topology.degree <= _MOST_REPLICAS)
        kind = Replicas if wanted and self.algorithm not in _REBUILT else Accumulator
        return kind(float(topology.weights[rank, rank]), weights, numel, device)

    def warn_of_noise(self, topology: Topology, compressor: PlainCompressor) -> None:
        """Warn if DCD is given a compressor noisier than it is known to stand; that of a fixed step is not relative."""
        if self.algorithm != "dcd" or topology.num_ranks == 1 or compressor.has_bounded_noise:
            return
        noise = relative_error(compressor)
        if noise >= topology.most_noise:
            warnings.warn(
                f"dcd is known to converge on this topology ({topology}) for compressors with |C(z) - z| < "
                f"{topology.most_noise:.3g} |z|, but {compressor} has about {noise:.3g}: it may diverge; "
                "use more bits, a better connected topology, or choco",
                stacklevel=4,
            )

    @property
    def fingerprint(self) -> int:
        """A number that is the same for what must be the same on all ranks."""
        said = repr(replace(self, timeout_s=1.0, memory=AUTO))
        return zlib.crc32(re.sub(r" at 0x[0-9a-f]+", "", said).encode())
