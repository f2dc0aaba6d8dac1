"""What there is to learn from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Samples:
    """Inputs, and what to make of them: images and their classes, or characters and those that follow."""

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise ValueError(f"{len(self.inputs)} inputs have {len(self.targets)} targets")

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw some at random, with replacement."""
        chosen = torch.randint(len(self), (size,), generator=generator)
        return self.inputs[chosen], self.targets[chosen]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to learn, and what to test it with."""

    name: str
    train: Samples
    test: Samples
    num_classes: int = 10
    """Of images, or of characters."""

    @property
    def is_text(self) -> bool:
        """Whether inputs are characters, and not images."""
        return not self.train.inputs.is_floating_point()
