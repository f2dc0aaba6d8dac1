"""The residuals and velocities of all buckets: flat tensors, of which every bucket and the fused step have views."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headway.compress import BucketMemory, Shape
from headway.exchange.layout import Layout, regroup
from headway.kernels import Momentum, Velocity
from headway.kernels.threshold import Threshold

_FUSED = "fused"


class Memories:
    """The memories of the buckets of a layout. They allocate nothing until a plan needs them, but for a velocity.

    Args:
        layout: The buckets.
        residual: All residuals, one bucket after the other, if there are any.
        velocity: The velocities of momentum correction, in the same order, if momentum is corrected.
    """

    def __init__(self, layout: Layout, residual: Tensor | None = None, velocity: Velocity | None = None) -> None:
        self.layout = layout
        self.velocity = velocity
        """The same on all ranks as long as there are no residuals."""
        given = residual if velocity is None else velocity.values
        self._device = torch.device("cpu") if given is None else given.device
        self._residual = residual
        self._of_bucket: dict[int, BucketMemory] = {}
        self._fused: BucketMemory | None = None

    @classmethod
    def at_rest(cls, layout: Layout, momentum: Momentum | None) -> Memories:
        """Return the memories before the first step."""
        numel = sum(bucket.shape.numel for bucket in layout)
        return cls(layout, velocity=None if momentum is None else Velocity.zeros(numel, momentum))

    @property
    def residual(self) -> Tensor | None:
        """All residuals, one bucket after the other; None if there are none."""
        return self._residual

    def move_to(self, device: torch.device) -> None:
        """Move residuals and velocities to the device of the gradients."""
        if device == self._device:
            return
        thresholds = self.thresholds()
        self._device = device
        self._residual = None if self._residual is None else self._residual.to(device)
        self.velocity = None if self.velocity is None else self.velocity.to(device)
        self._of_bucket, self._fused = {}, None
        self.set_thresholds(thresholds)

    def regrouped(self, layout: Layout) -> Memories:
        """Return memories for other buckets of the same parameters, with the same residuals and velocities."""
        residual = None if self._residual is None else self._regroup(self._residual, layout)
        velocity = self.velocity
        if velocity is not None:
            velocity = Velocity(self._regroup(velocity.values, layout), velocity.before, velocity.momentum)
        return Memories(layout, residual, velocity)

    def _regroup(self, flat: Tensor, layout: Layout) -> Tensor:
        parts = torch.split(flat, [bucket.shape.numel for bucket in self.layout])
        return torch.cat(regroup(parts, self.layout, layout))

    def rescale(self, factor: float) -> None:
        """Multiply all that is kept, and what is remembered of it, because the loss has another scale from now on.

        Entries that overflow are dropped: Inf in a residual would make all later steps overflow.
        """
        if self.velocity is not None:
            self.velocity.values.mul_(factor).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        if self._residual is not None:
            self._residual.mul_(factor).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
            for threshold in self.thresholds().values():
                threshold.rescale(factor)

    def forget(self) -> None:
        """Free the residuals: nothing is left in them."""
        self._residual, self._of_bucket, self._fused = None, {}, None

    def bucket(self, index: int, *, needed: bool) -> BucketMemory:
        """Return the memory of a bucket; if it is not needed and there are no residuals, one without a residual."""
        start = sum(bucket.shape.numel for bucket in self.layout[:index])
        shape = self.layout[index].shape
        if not needed and self._residual is None:
            return BucketMemory(shape, velocity=self._velocity_of(start, shape), device=self._device)
        if index not in self._of_bucket:
            part = self._allocated()[start : start + shape.numel]
            self._of_bucket[index] = BucketMemory(shape, residual=part, velocity=self._velocity_of(start, shape))
        return self._of_bucket[index]

    def fused(self, *, needed: bool) -> BucketMemory:
        """Return the memory of all buckets as one."""
        if not needed and self._residual is None:
            return BucketMemory(self._shape, velocity=self.velocity, device=self._device)
        if self._fused is None:
            self._fused = BucketMemory(self._shape, residual=self._allocated(), velocity=self.velocity)
        return self._fused

    def _velocity_of(self, start: int, shape: Shape) -> Velocity | None:
        return None if self.velocity is None else self.velocity.part(start, start + shape.numel)

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
