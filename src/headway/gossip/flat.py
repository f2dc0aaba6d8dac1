"""A model's parameters and buffers as flat float32 tensors, and the mixing of buffers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
                raise ValueError(f"a {kind} is {tensor.dtype}, but gossip carries float32, float16 and bfloat16")
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
