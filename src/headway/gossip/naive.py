"""D-PSGD with models compressed as they are: what not to do."""

from __future__ import annotations

from typing import final

from torch import Tensor

from headway.gossip.base import Estimated
from headway.gossip.estimates import Change, Estimates


@final
class Naive(Estimated):
    """Mix compressed models: the negative control.

        x_i <- Σ_j W_ij C(x_j) + δ_i

    **Cost**: one round, degree messages of M bytes: α + degree M β.
    **Error**: the noise of C comes anew in every step, and stays however small
    the learning rate gets.

    Reference: Tang et al., Communication compression for decentralized training, 2018, section 3.
    """

    def propose(self, y: Tensor, around: Estimates) -> Tensor:
        """Return the new model, W_ii C(x) + Σ W_ij C(x_j) + (y - x)."""
        return self.x.neg_().add_(y).add_(around.sum).add_(self.estimate, alpha=around.own_weight)

    def settle(self, sent: Tensor) -> None:
        """Keep what was sent: the rank itself mixes with no better."""
        self.estimate.copy_(sent)

    @property
    def change(self) -> Change:
        """A message is the model itself."""
        return Change(keep=0.0, gain=1.0)
