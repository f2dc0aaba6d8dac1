"""What the algorithms have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from headway.gossip.estimates import Change, Estimates


class Algorithm(Protocol):
    """One rank's part of a decentralised algorithm, on flat tensors.

    A step: the inner optimizer moves the model from x to y; `propose` says what to send; `settle` hears how it was
    compressed; the messages of all neighbours change the estimates by `change`; `mix` is called when they have. If
    ``overlaps``, x is final before `mix`, and the messages may travel during the next forward and backward.
    """

    overlaps: ClassVar[bool]
    x: Tensor
    """The model."""

    def start(self, x: Tensor) -> None:
        """Begin from where everybody has the same model."""

    def propose(self, y: Tensor, around: Estimates) -> Tensor:
        """Return what to send, given the model after the local update; ``y`` may be overwritten."""

    def settle(self, sent: Tensor) -> None:
        """Take in what was really sent, as the neighbours read it."""

    @property
    def change(self) -> Change:
        """How the messages of this step change estimates."""

    def mix(self, around: Estimates) -> None:
        """Take in the estimates after everybody's message."""

    def state(self) -> dict[str, Any]:
        """Return all tensors and numbers."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Take them over."""


class Mixing:
    """What most algorithms share: a model, maybe an estimate of it as others have it, and nothing to do in `mix`."""

    overlaps: ClassVar[bool] = True

    def __init__(self, numel: int, device: torch.device) -> None:
        self.x = torch.zeros(numel, device=device)

    def start(self, x: Tensor) -> None:
        """Begin from where everybody has the same model."""
        self.x.copy_(x)

    def mix(self, around: Estimates) -> None:
        """Do nothing: the next step looks at the estimates."""

    def state(self) -> dict[str, Any]:
        """Return the model."""
        return {"x": self.x}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take it over."""
        self.x.copy_(state["x"])


class Estimated(Mixing):
    """One that also keeps its own estimate: the model as the neighbours know it."""

    def __init__(self, numel: int, device: torch.device) -> None:
        super().__init__(numel, device)
        self.estimate = torch.zeros(numel, device=device)

    def start(self, x: Tensor) -> None:
        """Begin from where everybody has the same model."""
        super().start(x)
        self.estimate.copy_(x)

    def state(self) -> dict[str, Any]:
        """Return model and estimate."""
        return {**super().state(), "estimate": self.estimate}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take them over."""
        super().load(state)
        self.estimate.copy_(state["estimate"])
