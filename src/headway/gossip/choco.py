"""CHOCO-SGD."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor

from headway.gossip.base import Estimated
from headway.gossip.estimates import Change, Estimates


@final
class CHOCO(Estimated):
    """Send what neighbours do not know yet, compressed in any way, and mix with what everybody knows.

        q_i = C(y_i - x^_i),  x^_j <- x^_j + q_j for all j
        x_i = y_i + γ_c Σ_j W_ij (x^_j - x^_i)

    The paper starts from x^ = 0; here everybody starts from the same x, so that x^ = x, and nothing of it has to
    travel.

    **Cost**: one round, degree messages of M bytes: α + degree M β. They must have come before the next forward, so
    that nothing overlaps.
    **Error**: C may be biased, if it is a contraction; the mean of x moves by the mean of δ alone.

    Reference: Koloskova, Stich and Jaggi, Decentralized stochastic optimization and gossip algorithms with compressed
    communication, 2019.

    Args:
        numel: How many parameters there are.
        device: Where tensors are kept.
        consensus_step: γ_c, in (0, 1].
    """

    overlaps: ClassVar[bool] = False

    def __init__(self, numel: int, device: torch.device, consensus_step: float) -> None:
        super().__init__(numel, device)
        self._consensus_step = consensus_step

    def propose(self, y: Tensor, around: Estimates) -> Tensor:
        """Return y - x^."""
        self.x.copy_(y)
        return y.sub_(self.estimate)

    def settle(self, sent: Tensor) -> None:
        """Know what the neighbours know."""
        self.estimate.add_(sent)

    @property
    def change(self) -> Change:
        """A message is a difference."""
        return Change(keep=1.0, gain=1.0)

    def mix(self, around: Estimates) -> None:
        """Move towards the neighbours' estimates."""
        self.x.add_(around.sum, alpha=self._consensus_step)
        self.x.add_(self.estimate, alpha=self._consensus_step * (around.own_weight - 1))
