"""ECD-PSGD: extrapolation compression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from headway.gossip.base import Estimated
from headway.gossip.estimates import Change, Estimates


@final
class ECD(Estimated):
    """Send compressed extrapolations, from which neighbours average an ever better estimate.

        x_i(t+1) = Σ_j W_ij x~_j(t) + δ_i
        z_i = (1 - t/2) x_i(t) + (t/2) x_i(t+1)
        x~_i(t+1) = (1 - 2/t) x~_i(t) + (2/t) C(z_i),  t = 1, 2, ...

    **Cost**: one round, degree messages of M bytes: α + degree M β.
    **Error**: C must be unbiased with noise bounded in absolute terms; that of
    the estimate then falls as 1/t. z grows like t, so a scale that follows it makes the algorithm diverge.

    Reference: Tang et al., Communication compression for decentralized training, 2018, algorithm 2.
    """

    def __init__(self, numel: int, device: torch.device) -> None:
        super().__init__(numel, device)
        self._t = 0
        self._before = torch.zeros(numel, device=device)

    def start(self, x: Tensor) -> None:
        """Begin from where everybody has the same model."""
        super().start(x)
        self._t = 0

    def propose(self, y: Tensor, around: Estimates) -> Tensor:
        """Return z, with x(t+1) = W_ii x~ + Σ W_ij x~_j + (y - x)."""
        self._t += 1
        self._before.copy_(self.x)
        self.x.neg_().add_(y).add_(around.sum).add_(self.estimate, alpha=around.own_weight)
        return self._before.mul_(1 - self._t / 2).add_(self.x, alpha=self._t / 2)

    def settle(self, sent: Tensor) -> None:
        """Improve the own estimate as the neighbours do."""
        keep, gain = self.change
        self.estimate.mul_(keep).add_(sent, alpha=gain)

    @property
    def change(self) -> Change:
        """A message counts 2/t."""
        return Change(keep=1 - 2 / self._t, gain=2 / self._t)

    def state(self) -> dict[str, Any]:
        """Return model, estimate and t."""
        return {**super().state(), "t": self._t}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take them over."""
        super().load(state)
        self._t = int(state["t"])
