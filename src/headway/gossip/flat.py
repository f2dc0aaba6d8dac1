"""Tensors of a model as one flat float32 tensor."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

CARRIED = (torch.float32, torch.float16, torch.bfloat16)


class FlatView:
    """Reads tensors into one flat tensor, and writes them from it.

    Args:
        tensors: Of a type that float32 holds, on one device.
        what: They are, for messages.
    """

    def __init__(self, tensors: Iterable[Tensor], what: str) -> None:
        self._tensors = list(tensors)
        for tensor in self._tensors:
            if tensor.dtype not in CARRIED:
                raise ValueError(f"a {what} is {tensor.dtype}, but gossip carries float32, float16 and bfloat16")
        devices = {tensor.device for tensor in self._tensors}
        if len(devices) > 1:
            raise ValueError(f"{what}s are on {', '.join(sorted(map(str, devices)))}, but must be on one device")
        self.device = devices.pop() if devices else torch.device("cpu")
        self.numel = sum(tensor.numel() for tensor in self._tensors)
        self.is_exact = all(tensor.dtype == torch.float32 for tensor in self._tensors)
        """Whether what is written is read again to the bit."""

    @torch.no_grad()
    def read(self, out: Tensor) -> Tensor:
        """Copy the tensors into ``out``."""
        for view, tensor in zip(self._views_of(out), self._tensors, strict=True):
            view.copy_(tensor)
        return out

    @torch.no_grad()
    def write(self, flat: Tensor) -> None:
        """Copy a flat tensor into the tensors."""
        for view, tensor in zip(self._views_of(flat), self._tensors, strict=True):
            tensor.copy_(view)

    def new(self) -> Tensor:
        """Return a flat tensor of what the tensors hold."""
        return self.read(torch.empty(self.numel, device=self.device))

    def _views_of(self, flat: Tensor) -> list[Tensor]:
        parts = torch.split(flat, [tensor.numel() for tensor in self._tensors]) if self._tensors else ()
        return [part.view(tensor.shape) for part, tensor in zip(parts, self._tensors, strict=True)]
