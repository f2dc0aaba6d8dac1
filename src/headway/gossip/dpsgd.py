"""D-PSGD."""

from __future__ import annotations

from typing import final

from torch import Tensor

from headway.gossip.base import Mixing
from headway.gossip.estimates import Change, Estimates


@final
class DPSGD(Mixing):
    """Mix models with the neighbours', uncompressed.

        x_i <- Σ_j W_ij x_j + δ_i,  δ_i the local update (-γ g_i for SGD)

    **Cost**: one round, degree messages of M bytes, 4 a parameter: α + degree M β.
    **Error**: the mean of x moves by the mean of δ alone.

    Reference: Lian et al., Can decentralized algorithms outperform centralized algorithms?, 2017.
    """

    def propose(self, y: Tensor, around: Estimates) -> Tensor:
        """Return the new model, W_ii x + Σ W_ij x_j + (y - x)."""
        return self.x.mul_(around.own_weight - 1).add_(y).add_(around.sum)

    def settle(self, sent: Tensor) -> None:
        """Do nothing: it was sent as it is."""

    @property
    def change(self) -> Change:
        """A message is the model itself."""
        return Change(keep=0.0, gain=1.0)
