"""A model's parameters and buffers as flat float32 tensors."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

CARRIED = (torch.float32, torch.float16, torch.bfloat16)


class FlatView:
    """Reads tensors into one flat tensor, and writes them back from it.

    Args:
        tensors: Tensors of the types that float32 can hold, on one device.
        kind: "parameter" or "buffer", for error messages.
    """

    def __init__(self, tensors: Iterable[Tensor], kind: str) -> None:
        self._tensors = list(tensors)
        for tensor in self._tensors:
            if tensor.dtype not in CARRIED:
                raise ValueError(f"a {kind} is {tensor.dtype}, but must be float32, float16 or bfloat16")
        devices = {tensor.device for tensor in self._tensors}
        if len(devices) > 1:
            raise ValueError(f"{kind}s are on {', '.join(sorted(map(str, devices)))}, but must be on one device")
        self.device = devices.pop() if devices else torch.device("cpu")
        self.numel = sum(tensor.numel() for tensor in self._tensors)
        self.is_exact = all(tensor.dtype == torch.float32 for tensor in self._tensors)
        """Whether `read` returns the very bits that `write` was given."""

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
        """Return the tensors' values as a new flat tensor."""
        return self.read(torch.empty(self.numel, device=self.device))

    def _views_of(self, flat: Tensor) -> list[Tensor]:
        parts = torch.split(flat, [tensor.numel() for tensor in self._tensors]) if self._tensors else ()
        return [part.view(tensor.shape) for part, tensor in zip(parts, self._tensors, strict=True)]
