"""The settings of gossip, checked, and the values that "auto" stands for."""

from __future__ import annotations

import re
import warnings
import zlib
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from headway.collectives import AUTO
from headway.collectives.executor import DEFAULT_TIMEOUT_S
from headway.compress import Compressor, Contraction, FullPrecision, StochasticQuantizer
from headway.gossip.algorithms import CHOCO, DCD, DPSGD, ECD, Algorithm, Naive
from headway.gossip.estimates import Accumulator, Estimates, Replicas
from headway.gossip.topology import Topology
from headway.kernels import noise_key

ALGORITHMS = ("dpsgd", "naive", "dcd", "ecd", "choco")
MEMORIES = (AUTO, "lean", "resilient")
_DEFAULT_COMPRESSORS: dict[str, Compressor | None] = {
    "dpsgd": None,
    "naive": StochasticQuantizer(bits=8),
    "dcd": StochasticQuantizer(bits=8),
    "ecd": StochasticQuantizer(bits=8, step="auto"),
    "choco": StochasticQuantizer(bits=4),
}
_MOST_REPLICAS = 4
_SENDS_MODELS = ("dpsgd", "naive")
"""Algorithms whose messages are whole models: every round builds the sum from nothing, so they need no replicas."""
_SAMPLE = 1 << 16
_HEADROOM = 4.0


@dataclass(frozen=True, kw_only=True)
class GossipSettings:
    """The options of `headway.gossip.wrap`, where they are explained."""

    algorithm: str = "dcd"
    compressor: Compressor | Literal["auto"] | None = AUTO
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
                f"buffer_interval is {self.buffer_interval!r}, but must be a number of rounds, or 0 for never"
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
                "dpsgd sends uncompressed models: use dcd, ecd or choco with a compressor, or naive for comparison"
            )
        if self.algorithm != "choco" and not chosen.is_unbiased:
            raise ValueError(f"{self.algorithm} needs an unbiased compressor, and {chosen} is not: use choco with it")
        if self.algorithm != "ecd" and getattr(chosen, "step", None) == AUTO:
            raise ValueError(f"step='auto' is for ecd: give a step, or None for one scale a block, to {self.algorithm}")
        if self.algorithm == "ecd" and not chosen.has_bounded_noise:
            raise ValueError(
                f"ecd extrapolates, so the noise must not grow with what is sent: give StochasticQuantizer a "
                f"fixed step, or step='auto', instead of {chosen}"
            )

    @property
    def chosen_compressor(self) -> Compressor:
        """The compressor that was given, or the algorithm's default."""
        given = _DEFAULT_COMPRESSORS[self.algorithm] if self.compressor == AUTO else self.compressor
        return FullPrecision() if given is None else given

    def compressor_for(self, x: Tensor) -> Compressor:
        """Return the compressor to use for a model: with a step, and for choco a contraction."""
        chosen = self.chosen_compressor
        if isinstance(chosen, StochasticQuantizer) and chosen.step == AUTO:
            chosen = replace(chosen, step=automatic_step(x, chosen.bits))
        if self.algorithm == "choco" and chosen.is_unbiased and not isinstance(chosen, FullPrecision):
            return Contraction(chosen)
        return chosen

    def make_algorithm(self, numel: int, device: torch.device, compressor: Compressor) -> Algorithm:
        """Return the algorithm, for a model with ``numel`` parameters."""
        if self.algorithm == "choco":
            return CHOCO(numel, device, self.consensus_step or automatic_consensus_step(compressor))
        kinds: dict[str, Any] = {"dpsgd": DPSGD, "naive": Naive, "dcd": DCD, "ecd": ECD}
        algorithm: Algorithm = kinds[self.algorithm](numel, device)
        return algorithm

    def make_estimates(self, topology: Topology, rank: int, numel: int, device: torch.device) -> Estimates:
        """Return the estimates of a rank's neighbours, with replicas if ``memory`` asks for them."""
        resilient = self.memory == "resilient" or (self.memory == AUTO and topology.degree <= _MOST_REPLICAS)
        kind = Replicas if resilient and self.algorithm not in _SENDS_MODELS else Accumulator
        return kind(float(topology.weights[rank, rank]), topology.weights_at(rank), numel, device)

    def warn_of_noise(self, topology: Topology, compressor: Compressor) -> None:
        """Warn if DCD has a compressor noisier than its condition allows; a fixed step's noise is not relative."""
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
        """A number that depends on all settings that must be the same on all ranks, and that saved states hold."""
        text = repr(replace(self, timeout_s=1.0, memory=AUTO)).removeprefix("Gossip")  # the name when FORMAT 1 began
        return zlib.crc32(re.sub(r" at 0x[0-9a-f]+", "", text).encode())


def relative_error(compressor: Compressor) -> float:
    """Return |C(z) - z| / |z| for 65,536 normal entries.

    >>> round(relative_error(StochasticQuantizer(bits=8)), 3)
    0.012
    """
    z = torch.randn(_SAMPLE, generator=torch.Generator().manual_seed(0))
    key = noise_key(0, 0, 0)
    message = torch.empty(compressor.num_bytes(_SAMPLE), dtype=torch.uint8)
    compressor.encode(z, key, out=message)
    sent = torch.empty_like(z)
    compressor.decode(message, key, out=sent)
    return float((sent - z).norm() / z.norm())


def automatic_step(x: Tensor, bits: int) -> float:
    """Return a fixed step for ECD: room for four times the largest parameter, in two digits.

    z, an extrapolated model, is larger than a model, increasingly so as training goes on.
    """
    largest = float(x.abs().max()) if x.numel() else 0.0
    half_range = 0.5 if bits == 1 else (1 << (bits - 1)) - 1
    return float(f"{_HEADROOM * (largest or 1.0) / half_range:.1e}")


def automatic_consensus_step(compressor: Compressor) -> float:
    """Return γ_c = δ^1.5 in two digits, where δ = 1 - |C(z) - z|² / |z|² for normal entries.

    Close to what papers found by tuning: 0.5 for sign (0.45), 0.03 for random 10% (0.05), 1 without compression.

    >>> from headway.compress import Sign
    >>> automatic_consensus_step(FullPrecision()), automatic_consensus_step(Sign())
    (1.0, 0.51)
    """
    through = 1 - relative_error(compressor) ** 2
    return max(round(float(max(through, 0.0) ** 1.5), 2), 0.01)
