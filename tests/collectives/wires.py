"""Stand in for the wire, where only what ranks ask of it matters, or without the time that processes take."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch


@dataclass
class Message:
    """A send or receive that has been started."""

    tensor: torch.Tensor
    peer: int
    is_complete: bool = False


class Notebook:
    """Writes down what it is asked to do; everything is over at once."""

    def __init__(self) -> None:
        self.log: list[str] = []

    @staticmethod
    def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(torch.uint8)

    def send(self, payload, peer, tag):
        self.log.append(f"send to {peer}")
        return Message(payload, peer)

    def receive(self, target, peer, tag):
        self.log.append(f"receive from {peer}")
        return Message(target, peer)

    def wait(self, pending):
        self.log.append(f"wait for {pending.peer}")


class PostOffice:
    """Where the sends and receives of `LocalWire` meet: those of two ranks with the same tag in order, as with Gloo."""

    def __init__(self) -> None:
        self.waiting: dict[tuple[str, tuple[int, int, int]], deque[Message]] = {}
        """What has not met yet, by what it is and (source, target, tag)."""

    def meet(self, what: str, other: str, route: tuple[int, int, int], message: Message) -> None:
        """Let a send or receive meet the first of the others, or wait for it."""
        others = self.waiting.get((other, route))
        if others is None:
            self.waiting.setdefault((what, route), deque()).append(message)
            return
        first = others.popleft()
        if not others:
            del self.waiting[other, route]
        sent, received = (message, first) if what == "send" else (first, message)
        received.tensor[: sent.tensor.numel()] = sent.tensor  # a longer one would raise, a shorter one does not
        sent.is_complete = received.is_complete = True


class LocalWire:
    """One of several ranks of the same thread."""

    def __init__(self, office: PostOffice, rank: int) -> None:
        self._office = office
        self._rank = rank

    as_bytes = staticmethod(Notebook.as_bytes)

    def send(self, payload, peer, tag):
        message = Message(payload, peer)
        self._office.meet("send", "receive", (self._rank, peer, tag), message)
        return message

    def receive(self, target, peer, tag):
        message = Message(target.view(torch.uint8), peer)
        self._office.meet("receive", "send", (peer, self._rank, tag), message)
        return message

    def wait(self, pending):
        assert pending.is_complete, f"it would wait for rank {pending.peer} for ever"
