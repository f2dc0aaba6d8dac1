"""A model's floating-point buffers, such as batch norm's statistics, averaged while the next steps change them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


class StagedBuffers:
    """Copies of the buffers, which an exchange averages while forward passes go on with the buffers themselves.

        buffer = buffer + average - copy,  the copy as it was when the exchange began

    Args:
        find: Returns the floating-point buffers of the model by name.
    """

    def __init__(self, find: Callable[[], Mapping[str, Tensor]]) -> None:
        self._find = find
        self.copies = {name: buffer.detach().clone() for name, buffer in find().items()}
        """What is averaged."""
        self._before: dict[str, Tensor] = {}
        self._common = {name: copy.clone() for name, copy in self.copies.items()}
        """The latest averages that were taken over, the same on all ranks."""

    @torch.no_grad()
    def stage(self) -> None:
        """Copy the buffers, when an exchange begins."""
        for name, buffer in self._found():
            self.copies[name].copy_(buffer)
        self._before = {name: copy.clone() for name, copy in self.copies.items()}

    @torch.no_grad()
    def apply(self, *, is_late: bool) -> None:
        """Take the averages over, when the exchange is over; if steps have passed, as a change."""
        self._common = {name: copy.clone() for name, copy in self.copies.items()}
        for name, buffer in self._found():
            if is_late and name in self._before:
                before = self._before[name]
                later = buffer + (self.copies[name] - before)
                buffer.copy_(torch.where(before.isfinite() & later.isfinite(), later, self.copies[name]))
            else:
                buffer.copy_(self.copies[name])
        self._before = {}

    @torch.no_grad()
    def adopt(self) -> None:
        """Take the buffers as they are for what all ranks have in common."""
        for name, buffer in self._found():
            self.copies[name].copy_(buffer)
            self._common[name].copy_(buffer)

    def common_copies(self) -> dict[str, Tensor]:
        """Return copies of what all ranks have in common."""
        return {name: copy.clone() for name, copy in self._common.items()}

    def take_over(self, common: Mapping[str, Tensor]) -> None:
        """Take what other ranks have in common."""
        self._common = dict(common)

    def start_again(self) -> None:
        """Go back to what all ranks have in common."""
        self._write([(buffer, self._common[name]) for name, buffer in self._found()])

    @contextmanager
    def in_common(self) -> Iterator[None]:
        """Put the latest averages in place inside the block."""
        found = self._found()
        own = [buffer.detach().clone() for _, buffer in found]
        self._write([(buffer, self._common[name]) for name, buffer in found])
        try:
            yield
        finally:
            self._write([(buffer, kept) for (_, buffer), kept in zip(found, own, strict=True)])

    @staticmethod
    @torch.no_grad()
    def _write(pairs: list[tuple[Tensor, Tensor]]) -> None:
        for buffer, value in pairs:
            buffer.copy_(value)

    def _found(self) -> list[tuple[str, Tensor]]:
        """Return the buffers that are still of the size they had."""
        found = self._find()
        return [(name, found[name]) for name, copy in self.copies.items() if _fits(found.get(name), copy)]

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return the buffers, the copies, those from before the exchange under way, and the latest averages."""
        return {
            "own": dict(self._found()),
            "copies": dict(self.copies),
            "before": dict(self._before),
            "common": dict(self._common),
        }

    def misfit(self, state: Mapping[str, Mapping[str, Tensor]]) -> str | None:
        """Return why what `state` returned does not fit; None if it does."""
        _ = state["own"]
        for kind in ("copies", "common"):
            sizes = {name: tensor.numel() for name, tensor in state[kind].items()}
            if sizes != {name: copy.numel() for name, copy in self.copies.items()}:
                return "the state is of another model: its buffers have other names or sizes"
        return None

    def load(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restore what `state` returned."""
        for name, copy in self.copies.items():
            copy.copy_(state["copies"][name])
            self._common[name].copy_(state["common"][name])
        self._before = {name: tensor.to(self.copies[name].device) for name, tensor in state["before"].items()}
        own = state["own"]  # without buffers that have grown or shrunk
        self._write([(buffer, own[name]) for name, buffer in self._found() if _fits(own.get(name), buffer)])


def _fits(buffer: Tensor | None, copy: Tensor) -> bool:
    return buffer is not None and buffer.shape == copy.shape
