"""DCD-PSGD: difference compression."""

from __future__ import annotations

from typing import final

from torch import Tensor

from headway.gossip.base import Mixing
from headway.gossip.estimates import Change, Estimates


@final
class DCD(Mixing):
    """Send compressed differences, and move by no more than was sent.

        z_i = Σ_j W_ij x_j + δ_i - x_i,  x_i <- x_i + C(z_i)

    Neighbours know x_i exactly, since it moves by what they get.

    **Cost**: one round, degree messages of M bytes: α + degree M β.
    **Error**: C must be unbiased; known to converge for |C(z) - z| < (1 - ρ) / (2μ) |z|, which is more than it needs.

    Reference: Tang et al., Communication compression for decentralized training, 2018, algorithm 1.
    """

    def propose(self, y: Tensor, around: Estimates) -> Tensor:
        """Return z = W_ii x + Σ W_ij x_j + (y - x) - x."""
        return y.add_(around.sum).add_(self.x, alpha=around.own_weight - 2)

    def settle(self, sent: Tensor) -> None:
        """Move by what was sent."""
        self.x.add_(sent)

    @property
    def change(self) -> Change:
        """A message is a difference."""
        return Change(keep=1.0, gain=1.0)
