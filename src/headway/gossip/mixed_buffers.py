"""The mixing of a model's buffers with those of neighbours."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headway.replica import FlatView


class MixedBuffers:
    """Mixes buffers, such as batch norm's statistics, with the neighbours', in rounds whose messages carry them.

        b_i <- b_i + Σ_j W_ij (b_j - b_i),  b_j as they were when the messages were sent

    No gradient moves buffers, so they are mixed like models. What forward has added in the meantime stays, and the
    mean over ranks does not change. Integers, such as counts of batches, are left alone, and so are entries that are
    not finite, such as those of a mask.

    **Cost**: 4 bytes a number, in every ``buffer_interval``-th round.

    Args:
        buffers: The floating-point buffers.
        weights: W_ij of each neighbour.
    """

    def __init__(self, buffers: FlatView, weights: Mapping[int, float]) -> None:
        self._buffers = buffers
        self._weights = weights
        self._sent: Tensor | None = None
        self._move: Tensor | None = None

    def write(self, out: Tensor) -> None:
        """Write the buffers into the part of a message that is for them, if it has one."""
        if out.numel():
            self._sent = self._buffers.new().cpu()
            self._move = torch.zeros_like(self._sent)
            out.view(torch.float32).copy_(self._sent)

    def add(self, rank: int, section: Tensor) -> None:
        """Add a neighbour's buffers, if the message has any."""
        if section.numel() and self._sent is not None and self._move is not None:
            difference = (section.view(torch.float32) - self._sent).nan_to_num_(0.0, 0.0, 0.0)
            self._move.add_(difference, alpha=self._weights[rank])

    def apply(self) -> None:
        """Mix, if neighbours' buffers have been added."""
        if self._move is not None:
            self._buffers.write(self._buffers.new().add_(self._move.to(self._buffers.device)))
            self._sent = self._move = None

    def state(self) -> dict[str, Tensor]:
        """Return what has been added and is not applied yet."""
        return {} if self._move is None else {"move": self._move}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._sent, self._move = None, state.get("move")
