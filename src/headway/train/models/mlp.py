"""A plain multi-layer perceptron."""

from __future__ import annotations

from torch import nn


def mlp(num_classes: int = 10) -> nn.Module:
    """Return a perceptron with two hidden layers of 256, for images of 28 x 28.

    >>> sum(parameter.numel() for parameter in mlp().parameters())
    269322
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Linear(256, num_classes),
    )
