"""Buffers such as the statistics of batch norm: no gradient moves them, so they are mixed like models, now and then."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headway.gossip.flat import FlatView


class MixedBuffers:
    """Mixes buffers with the neighbours' at every ``interval``-th exchange, in its messages.

        b_i <- b_i + Σ_j W_ij (b_j - b_i),  b_j as they were when the messages were sent

    What forward has added in the meantime stays, and the mean over ranks is not changed. Integers, such as counts of
    batches, are left alone, and so are entries that are not finite, such as those of a mask.

    **Cost**: 4 bytes a number, every ``interval`` exchanges.

    Args:
        buffers: Those of floating type.
        weights: W_ij of each neighbour.
        interval: Exchanges from one mixing to the next; 0 for never.
    """

    def __init__(self, buffers: FlatView, weights: Mapping[int, float], interval: int) -> None:
        self._buffers = buffers
        self._weights = weights
        self._interval = interval
        self._sent: Tensor | None = None
        self._move: Tensor | None = None

    def num_bytes(self, number: int) -> int:
        """Return how many bytes a message has for buffers."""
        is_due = self._interval > 0 and number % self._interval == 0
        return 4 * self._buffers.numel if is_due else 0

    def write(self, number: int, out: Tensor) -> None:
        """Write the buffers into a message, if it has room for them."""
        if self.num_bytes(number):
            self._sent = self._buffers.new().cpu()
            self._move = torch.zeros_like(self._sent)
            out.view(torch.float32).copy_(self._sent)

    def add(self, rank: int, section: Tensor) -> None:
        """Take in a neighbour's buffers, if there are any."""
        if section.numel() and self._sent is not None and self._move is not None:
            difference = (section.view(torch.float32) - self._sent).nan_to_num_(0.0, 0.0, 0.0)
            self._move.add_(difference, alpha=self._weights[rank])

    def apply(self) -> None:
        """Mix, if messages have come."""
        if self._move is not None:
            self._buffers.write(self._buffers.new().add_(self._move.to(self._buffers.device)))
            self._sent = self._move = None

    def state(self) -> dict[str, Tensor]:
        """Return what has come and is not mixed yet."""
        return {} if self._move is None else {"move": self._move}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take it over."""
        self._sent, self._move = None, state.get("move")
