"""Error feedback: what a compressor does not send stays in a memory, and takes part in the next step.

G = g + residual;   sent = C(G);   residual = G - sent
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from headway.compress.base import Compressor
from headway.compress.memory import BucketMemory


class Compressed(NamedTuple):
    """A message, valid until the memory's next step, and its gain."""

    message: Tensor
    gain: float
    """1 - |G - sent|² / |G|²: at most 1, and below 0 where the error is larger than G; NaN if G is not finite."""

    @property
    def is_finite(self) -> bool:
        """Whether G has neither Inf nor NaN."""
        return not math.isnan(self.gain)


class Taken(NamedTuple):
    """What a message has taken out of a memory."""

    values: Tensor
    """Entries of G, before rounding to a value format; Inf and NaN are among them if there are any in G."""
    lost: Tensor
    """What the value format has rounded away, which is back in the memory; empty if that is nothing."""


@runtime_checkable
class FusedCompressor(Protocol):
    """A compressor that adds the gradient, selects and clears in one pass over the memory."""

    def take(self, gradient: Tensor | None, memory: BucketMemory, *, out: Tensor, undo: Tensor | None = None) -> Taken:
        """Add the gradient to the memory, and move a message out of it: see `ErrorFeedback.compress`."""


@dataclass(frozen=True)
class ErrorFeedback:
    """Error feedback around any compressor.

    **Cost**: for a `FusedCompressor`, such as top-k, one pass over gradient and memory. For any other, one pass to add
    the gradient, encoding, decoding, and one pass to subtract what was sent. Two more for the gain.

    Args:
        compressor: Makes the messages.
    """

    compressor: Compressor

    def compress(
        self, gradient: Tensor | None, memory: BucketMemory, key: int, *, undo: Tensor | None = None
    ) -> Compressed:
        """Add the gradient to the memory, and move a message out of it.

        Args:
            gradient: Flat, float32 or narrower; None if it has been added already.
            memory: The memory of the bucket.
            key: From `headway.kernels.noise_key`, for compressors that draw random numbers.
            undo: Receives the residual from before: see `Undo`.
        """
        num_bytes = self.compressor.num_bytes(memory.shape.numel)
        message = torch.empty(num_bytes, dtype=torch.uint8, device=memory.residual.device)
        if isinstance(self.compressor, FusedCompressor):
            taken = self.compressor.take(gradient, memory, out=message, undo=undo)
            return Compressed(message, gain_of(taken.values, memory.residual, taken.lost))
        memory.whole.accumulate(gradient, undo=undo)
        energy = math.nan if memory.whole.has_nonfinite else energy_of(memory.residual)
        self._take_generic(memory, key, message)
        return Compressed(message, _gain(energy, memory.residual))

    def _take_generic(self, memory: BucketMemory, key: int, message: Tensor) -> None:
        self.compressor.encode(memory.residual, key, out=message)
        sent = torch.empty_like(memory.residual)
        self.compressor.decode(message, key, out=sent)
        memory.residual.sub_(sent)
        memory.whole.drop_nonfinite()


def energy_of(x: Tensor) -> float:
    """Return |x|²; NaN if there is Inf or NaN in it."""
    norm = float(torch.linalg.vector_norm(x))
    if math.isfinite(norm):
        return norm**2
    return float(x.double().square().sum()) if bool(x.isfinite().all()) else math.nan


def gain_of(sent: Tensor, residual: Tensor, lost: Tensor | None = None) -> float:
    """Return 1 - |residual|² / |G|² after entries of G have left the residual; NaN if Inf or NaN was sent.

    Args:
        sent: The entries.
        residual: What is left of G.
        lost: What a value format rounded away, if that is in the residual too; G did not have it besides.

    >>> gain_of(torch.tensor([3.0]), torch.tensor([4.0, 0.0]))
    0.36
    >>> round(gain_of(torch.tensor([3.0]), torch.tensor([4.0, 1.0]), lost=torch.tensor([1.0])), 6)
    0.32
    """
    sent_energy, rest = energy_of(sent), energy_of(residual)
    lost_energy = 0.0 if lost is None else energy_of(lost)
    energy = sent_energy + rest - lost_energy
    return (sent_energy - lost_energy) / energy if energy != 0 else 1.0


def _gain(energy: float, residual: Tensor) -> float:
    """Return 1 - |residual|² / energy, where the energy is |G|²."""
    return 1 - energy_of(residual) / energy if energy != 0 else 1.0
