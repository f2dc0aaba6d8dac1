"""The gossip algorithms: D-PSGD, DCD-PSGD, ECD-PSGD, CHOCO-SGD, and naive compression as a negative control."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from headway.gossip.estimates import Change, Estimates

_MODEL = Change(keep=0.0, gain=1.0)
"""How a message changes an estimate if it is the model itself."""
_DIFFERENCE = Change(keep=1.0, gain=1.0)
"""How it does if it is a difference of models."""


class Algorithm(ABC):
    """One rank's part of a decentralised algorithm, on flat tensors.

    In each round: the inner optimizer has moved the model from x to y; `propose` returns what to send; `settle` takes
    what the compressor made of it; the neighbours' messages change the estimates by `change`; then `mix` is called.
    If ``overlaps``, x is final before `mix`, and messages may travel during the next forward and backward.

    Args:
        numel: Number of parameters.
        device: Device of the tensors.
    """

    overlaps: ClassVar[bool] = True

    def __init__(self, numel: int, device: torch.device) -> None:
        self.x = torch.zeros(numel, device=device)
        """The model."""

    def start(self, x: Tensor) -> None:
        """Start from a model that is the same on all ranks."""
        self.x.copy_(x)

    @abstractmethod
    def propose(self, y: Tensor, around: Estimates) -> Tensor:
        """Return what to send, given the model after the local update; ``y`` may be overwritten."""

    @abstractmethod
    def settle(self, sent: Tensor) -> None:
        """Apply what was sent, as the neighbours decode it."""

    @property
    @abstractmethod
    def change(self) -> Change:
        """How the messages of this round change estimates."""

    def mix(self, around: Estimates) -> None:  # noqa: B027  most algorithms read the estimates in `propose`
        """Apply the estimates, once all messages of the round are in them."""

    def state(self) -> dict[str, Any]:
        """Return all tensors and numbers that a resumed run needs."""
        return {"x": self.x}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.x.copy_(state["x"])


class Estimated(Algorithm):
    """An algorithm that also keeps its own estimate: the model as the neighbours know it."""

    def __init__(self, numel: int, device: torch.device) -> None:
        super().__init__(numel, device)
        self.estimate = torch.zeros(numel, device=device)

    def start(self, x: Tensor) -> None:
        super().start(x)
        self.estimate.copy_(x)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "estimate": self.estimate}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self.estimate.copy_(state["estimate"])


@final
class DPSGD(Algorithm):
    """Mix models with the neighbours', uncompressed.

        x_i <- Σ_j W_ij x_j + δ_i,  δ_i the local update (-γ g_i for SGD)

    **Cost**: one round, degree messages of M bytes, 4 a parameter: α + degree M β.
    **Error**: the mean of x moves by the mean of δ alone.

    Reference: Lian et al., Can decentralized algorithms outperform centralized algorithms?, 2017.
    """

    change = _MODEL

    def propose(self, y: Tensor, around: Estimates) -> Tensor:
        """Return the new model, W_ii x + Σ W_ij x_j + (y - x)."""
        return self.x.mul_(around.own_weight - 1).add_(y).add_(around.sum)

    def settle(self, sent: Tensor) -> None:
        """Do nothing: the model was sent uncompressed."""


@final
class Naive(Estimated):
    """Mix compressed models, as D-PSGD does uncompressed ones: the negative control.

        x_i <- Σ_j W_ij C(x_j) + δ_i

    **Cost**: one round, degree messages of M bytes: α + degree M β.
    **Error**: every round adds the noise of C again, and it stays however small the learning rate gets.

    Reference: Tang et al., Communication compression for decentralized training, 2018, section 3.
    """

    change = _MODEL

    def propose(self, y: Tensor, around: Estimates) -> Tensor:
        """Return the new model, W_ii C(x) + Σ W_ij C(x_j) + (y - x)."""
        return self.x.neg_().add_(y).add_(around.sum).add_(self.estimate, alpha=around.own_weight)

    def settle(self, sent: Tensor) -> None:
        """Keep what was sent: this rank also mixes with its compressed model."""
        self.estimate.copy_(sent)


@final
class DCD(Algorithm):
    """Send compressed differences, and move by exactly what was sent.

        z_i = Σ_j W_ij x_j + δ_i - x_i,  x_i <- x_i + C(z_i)

    Neighbours know x_i exactly, since it moves by what they receive.

    **Cost**: one round, degree messages of M bytes: α + degree M β.
    **Error**: C must be unbiased; known to converge for |C(z) - z| < (1 - ρ) / (2μ) |z|, which is more than it needs.

    Reference: Tang et al., Communication compression for decentralized training, 2018, algorithm 1.
    """

    change = _DIFFERENCE

    def propose(self, y: Tensor, around: Estimates) -> Tensor:
        """Return z = W_ii x + Σ W_ij x_j + (y - x) - x."""
        return y.add_(around.sum).add_(self.x, alpha=around.own_weight - 2)

    def settle(self, sent: Tensor) -> None:
        self.x.add_(sent)


@final
class ECD(Estimated):
    """Send compressed extrapolations, from which neighbours average an estimate that keeps improving.

        x_i(t+1) = Σ_j W_ij x~_j(t) + δ_i
        z_i = (1 - t/2) x_i(t) + (t/2) x_i(t+1)
        x~_i(t+1) = (1 - 2/t) x~_i(t) + (2/t) C(z_i),  t = 1, 2, ...

    **Cost**: one round, degree messages of M bytes: α + degree M β.
    **Error**: C must be unbiased with noise bounded in absolute terms; the error of the estimate then falls as 1/t.
    z grows like t, so a quantiser whose scale follows it makes the algorithm diverge.

    Reference: Tang et al., Communication compression for decentralized training, 2018, algorithm 2.
    """

    def __init__(self, numel: int, device: torch.device) -> None:
        super().__init__(numel, device)
        self._t = 0
        self._before = torch.zeros(numel, device=device)

    def start(self, x: Tensor) -> None:
        super().start(x)
        self._t = 0

    def propose(self, y: Tensor, around: Estimates) -> Tensor:
        """Return z, with x(t+1) = W_ii x~ + Σ W_ij x~_j + (y - x)."""
        self._t += 1
        self._before.copy_(self.x)
        self.x.neg_().add_(y).add_(around.sum).add_(self.estimate, alpha=around.own_weight)
        return self._before.mul_(1 - self._t / 2).add_(self.x, alpha=self._t / 2)

    def settle(self, sent: Tensor) -> None:
        """Update the own estimate as the neighbours do."""
        keep, gain = self.change
        self.estimate.mul_(keep).add_(sent, alpha=gain)

    @property
    def change(self) -> Change:
        return Change(keep=1 - 2 / self._t, gain=2 / self._t)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "t": self._t}

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self._t = int(state["t"])


@final
class CHOCO(Estimated):
    """Send what neighbours do not know yet, with any compressor, and mix with what all neighbours know.

        q_i = C(y_i - x^_i),  x^_j <- x^_j + q_j for all j
        x_i = y_i + γ_c Σ_j W_ij (x^_j - x^_i)

    The paper starts from x^ = 0; here all ranks start from the same x, so that x^ = x needs no message.

    **Cost**: one round, degree messages of M bytes: α + degree M β. They must have arrived before the next forward, so
    nothing overlaps.
    **Error**: C may be biased, if it is a contraction; the mean of x moves by the mean of δ alone.

    Reference: Koloskova, Stich and Jaggi, Decentralized stochastic optimization and gossip algorithms with compressed
    communication, 2019.

    Args:
        numel: Number of parameters.
        device: Device of the tensors.
        consensus_step: γ_c, in (0, 1].
    """

    overlaps: ClassVar[bool] = False
    change = _DIFFERENCE

    def __init__(self, numel: int, device: torch.device, consensus_step: float) -> None:
        super().__init__(numel, device)
        self._consensus_step = consensus_step

    def propose(self, y: Tensor, around: Estimates) -> Tensor:
        """Return y - x^."""
        self.x.copy_(y)
        return y.sub_(self.estimate)

    def settle(self, sent: Tensor) -> None:
        self.estimate.add_(sent)

    def mix(self, around: Estimates) -> None:
        """Move towards the neighbours' estimates."""
        self.x.add_(around.sum, alpha=self._consensus_step)
        self.x.add_(self.estimate, alpha=self._consensus_step * (around.own_weight - 1))
