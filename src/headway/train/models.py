"""Models to train, by name."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from headway.train.samples import Task
from headway.train.text import CONTEXT

_RESNET_WIDTHS = (16, 16, 32, 64)
_BLOCKS_PER_STAGE = 3
_TRANSFORMER_WIDTH = 128
_NUM_HEADS = 4
_NUM_LAYERS = 2


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


def cnn(num_classes: int = 10, *, width: int = 32) -> nn.Module:
    """Return the CNN of the benchmarks, for grey images of 28 x 28; half the width has a quarter of the parameters.

    >>> [sum(parameter.numel() for parameter in cnn(width=width).parameters()) for width in (32, 16)]
    [1663370, 417482]
    """
    return nn.Sequential(
        nn.Conv2d(1, width, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(98 * width, 16 * width),
        nn.ReLU(),
        nn.Linear(16 * width, num_classes),
    )


class ResidualBlock(nn.Module):
    """Two convolutions with batch norm and a shortcut: y = relu(x + f(x)).

    Where the number of channels grows, the shortcut halves x in size and pads it with channels of zeros, so that it
    has no parameters.
    """

    def __init__(self, num_inputs: int, num_outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(num_inputs, num_outputs, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(num_outputs),
            nn.ReLU(),
            nn.Conv2d(num_outputs, num_outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(num_outputs),
        )
        self._stride = stride
        self._num_new = num_outputs - num_inputs

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x[:, :, :: self._stride, :: self._stride]
        if self._num_new:
            shortcut = nn.functional.pad(shortcut, (0, 0, 0, 0, 0, self._num_new))
        return nn.functional.relu(self.body(x) + shortcut)


def resnet(num_classes: int = 10) -> nn.Module:
    """Return ResNet-20 for grey images: 3 stages of 3 blocks, 16, 32 and 64 channels wide.

    >>> sum(parameter.numel() for parameter in resnet().parameters())
    269434

    Reference: He et al., Deep Residual Learning for Image Recognition, 2015, section 4.2.
    """
    first, last = _RESNET_WIDTHS[0], _RESNET_WIDTHS[-1]
    layers: list[nn.Module] = [nn.Conv2d(1, first, 3, padding=1, bias=False), nn.BatchNorm2d(first), nn.ReLU()]
    for narrow, wide in pairwise(_RESNET_WIDTHS):
        layers.append(ResidualBlock(narrow, wide, stride=1 if narrow == wide else 2))
        layers += [ResidualBlock(wide, wide, stride=1) for _ in range(_BLOCKS_PER_STAGE - 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, num_classes))


class Transformer(nn.Module):
    """Predicts the next character at each of 64 positions: (n, 64) -> (n, 64, classes)."""

    def __init__(self, num_characters: int) -> None:
        super().__init__()
        width = _TRANSFORMER_WIDTH
        self.characters = nn.Embedding(num_characters, width)
        self.places = nn.Parameter(torch.zeros(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(
            width, _NUM_HEADS, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, _NUM_LAYERS, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_characters)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        hidden = self.characters(x) + self.places[:length]
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        hidden = self.layers(hidden, mask=later, is_causal=True)
        scores: Tensor = self.head(self.norm(hidden))
        return scores


def transformer(num_classes: int = 256) -> nn.Module:
    """Return a transformer of 2 layers, 128 wide, for 64 characters at a time.

    >>> sum(parameter.numel() for parameter in transformer().parameters())
    470784
    """
    return Transformer(num_classes)


MODELS = {"mlp": mlp, "cnn": cnn, "resnet": resnet, "transformer": transformer}
"""Each takes the number of classes; the transformer is for text, the others for images of 28 x 28."""


def check_model(name: str, *, is_text: bool) -> None:
    """Raise `ValueError` if there is no such model, or it is for other data."""
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}: choose one of {', '.join(MODELS)}")
    if is_text != (name == "transformer"):
        fitting = "transformer" if is_text else "mlp, cnn or resnet"
        raise ValueError(f"the model {name} is not for {'text' if is_text else 'images'}: use {fitting}")


def build_model(name: str, task: Task) -> nn.Module:
    """Return a model for a task, initialised from torch's random numbers."""
    check_model(name, is_text=task.is_text)
    return MODELS[name](task.num_classes)
