"""The residuals of all buckets: one flat tensor, of which every bucket and the fused step have views."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headway.compress import BucketMemory, Shape
from headway.exchange.layout import Layout, regroup
from headway.kernels.threshold import Threshold

_FUSED = "fused"


class Memories:
    """The memories of the buckets of a layout. They allocate nothing until a plan needs them.

    Args:
        layout: The buckets.
        residual: All residuals, one bucket after the other, if there are any.
    """

    def __init__(self, layout: Layout, residual: Tensor | None = None) -> None:
        self.layout = layout
        self._device = torch.device("cpu") if residual is None else residual.device
        self._residual = residual
        self._of_bucket: dict[int, BucketMemory] = {}
        self._fused: BucketMemory | None = None

    @property
    def residual(self) -> Tensor | None:
        """All residuals, one bucket after the other; None if there are none."""
        return self._residual

    def move_to(self, device: torch.device) -> None:
        """Move the residuals to the device of the gradients."""
        if device == self._device:
            return
        thresholds = self.thresholds()
        self._device = device
        self._residual = None if self._residual is None else self._residual.to(device)
        self._of_bucket, self._fused = {}, None
        self.set_thresholds(thresholds)

    def regrouped(self, layout: Layout) -> Memories:
        """Return memories for other buckets of the same parameters, with the same residuals."""
        if self._residual is None:
            return Memories(layout)
        parts = torch.split(self._residual, [bucket.shape.numel for bucket in self.layout])
        return Memories(layout, torch.cat(regroup(parts, self.layout, layout)))

    def rescale(self, factor: float) -> None:
        """Multiply the residuals, and what is remembered of them, because the loss has another scale from now on.

        Entries that overflow are dropped: Inf in a residual would make all later steps overflow.
        """
        if self._residual is not None:
            self._residual.mul_(factor).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
            for threshold in self.thresholds().values():
                threshold.rescale(factor)

    def forget(self) -> None:
        """Free the residuals: nothing is left in them."""
        self._residual, self._of_bucket, self._fused = None, {}, None

    def bucket(self, index: int, *, needed: bool) -> BucketMemory:
        """Return the memory of a bucket; if it is not needed and there are no residuals, an empty one."""
        if not needed and self._residual is None:
            return BucketMemory(self.layout[index].shape, device=self._device)
        if index not in self._of_bucket:
            start = sum(bucket.shape.numel for bucket in self.layout[:index])
            shape = self.layout[index].shape
            part = self._allocated()[start : start + shape.numel]
            self._of_bucket[index] = BucketMemory(shape, residual=part)
        return self._of_bucket[index]

    def fused(self, *, needed: bool) -> BucketMemory:
        """Return the memory of all buckets as one."""
        if not needed and self._residual is None:
            return BucketMemory(self._shape, device=self._device)
        if self._fused is None:
            self._fused = BucketMemory(self._shape, residual=self._allocated())
        return self._fused

    def thresholds(self) -> dict[str, Threshold]:
        """Return the remembered thresholds by the name of the memory."""
        found = {str(index): memory.whole.threshold for index, memory in self._of_bucket.items()}
        return found | ({} if self._fused is None else {_FUSED: self._fused.whole.threshold})

    def set_thresholds(self, thresholds: Mapping[str, Threshold]) -> None:
        """Restore the thresholds of an earlier run."""
        for name, threshold in thresholds.items():
            memory = self.fused(needed=True) if name == _FUSED else self.bucket(int(name), needed=True)
            memory.whole.threshold = threshold

    @property
    def _shape(self) -> Shape:
        return sum((bucket.shape for bucket in self.layout), Shape(()))

    def _allocated(self) -> Tensor:
        if self._residual is None:
            self._residual = torch.zeros(self._shape.numel, device=self._device)
        return self._residual
