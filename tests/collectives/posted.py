"""Wires in memory: what one rank sends, another finds in the receive that it has posted, at once."""

from __future__ import annotations

import torch

from headway.collectives.wire import BrokenWire


class Post:
    """Carries messages between the wires of all ranks, and records sender, receiver and tag.

    Args:
        stopped: Ranks that send nothing, and take in nothing.
    """

    def __init__(self, *stopped: int) -> None:
        self.stopped = set(stopped)
        self.gone: set[int] = set()
        """Ranks whose connections are closed."""
        self.waiting: dict[tuple[int, int, int], torch.Tensor] = {}
        self.sent: list[tuple[int, int, int]] = []
        self.closed: set[int] = set()
        """Ranks that have closed their connections."""


class PostedWire:
    """The wire of one rank."""

    patience_s = 100.0
    waiting_since = 0.0

    def __init__(self, post: Post, rank: int) -> None:
        self._post, self._rank = post, rank

    @staticmethod
    def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(torch.uint8)

    def receive(self, target, peer, tag):
        self._check(peer)
        self._post.waiting[peer, self._rank, tag] = self.as_bytes(target)
        return tag

    def send(self, payload, peer, tag):
        self._check(peer)
        key = (self._rank, peer, tag)
        if peer not in self._post.stopped and key in self._post.waiting:
            self._post.waiting.pop(key).copy_(payload)
        self._post.sent.append(key)
        return tag

    def close(self, peers):
        self._post.closed.add(self._rank)

    def release(self):
        pass

    def _check(self, peer: int) -> None:
        if peer in self._post.gone:
            raise BrokenWire(peer, timed_out=False, cause="connection closed")
